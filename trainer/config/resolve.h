// Inside LoadConfig: what keys mean together. load.h is the interface.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trainer/config/load.h"

namespace overtok {

// What reading the keys found out and a Config does not hold.
struct ReadFacts {
  std::string file;                // the configuration's own file, not one of its bases
  std::set<std::string> autos;     // keys whose value is `auto`
  std::set<std::string> horizons;  // horizon keys that were given a value
};

// Replaces the values that are `auto`, checks the rules between keys, sets inactive keys to their
// defaults, and resolves the horizon unless the corpus decides it. Every mistake becomes one entry
// of `errors`.
void ResolveConfig(const ReadFacts& facts, LoadedConfig* loaded, std::vector<std::string>* errors);

// Reads the default of a key into the config.
void ReadDefault(absl::string_view key, Config* config);

}  // namespace overtok

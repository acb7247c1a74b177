// Inside LoadConfig: what keys mean together. load.h is the interface.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "trainer/config/load.h"

namespace overtok {

// Replaces the values named in `autos`, checks the rules between keys, sets inactive keys to their
// defaults, and resolves the horizon unless the corpus decides it. Every mistake becomes one entry
// of `errors`. `horizons`: the horizon keys that were given a value.
void ResolveConfig(const std::set<std::string>& autos, const std::set<std::string>& horizons,
                   LoadedConfig* loaded, std::vector<std::string>* errors);

// Reads the default of a key into the config.
void ReadDefault(absl::string_view key, Config* config);

}  // namespace overtok

// From YAML files and command-line overrides to a checked Config, in two stages: LoadConfig
// resolves everything that the configuration alone decides; ResolveHorizon what depends on how much
// data there is.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "trainer/config/config.h"
#include "trainer/config/strict_yaml.h"

namespace overtok {

struct LoadedConfig {
  Config config;
  std::map<std::string, Origin> origins;  // of every key and optional section that was given
  // What is valid and yet probably not meant; programs that run a configuration print them.
  std::vector<std::string> warnings;

  // "configs/a.yaml:12: optimizer.lr": how errors about a value start.
  std::string Where(absl::string_view key) const;
};

// Reads `path` and what its `base:` names (a file or a list of files, later ones over earlier ones,
// all relative to the file that names them), lays the files `arms` over it in their order and the
// overrides ("key.path=value", later ones over earlier ones) over that, and checks the whole.
// Errors list every mistake found, one a line, each with its place, key, value, what was expected,
// and what to do.
absl::StatusOr<LoadedConfig> LoadConfig(absl::string_view path,
                                        const std::vector<std::string>& overrides,
                                        const std::vector<std::string>& arms = {});

// The same for YAML text (of a checkpoint or a trace); `name` stands for the file in errors.
absl::StatusOr<LoadedConfig> LoadConfigText(absl::string_view text, absl::string_view name,
                                            const std::vector<std::string>& overrides = {});

// Second stage, once the corpus is open: sets train.steps where the horizon is passes_over_data and
// optimizer.tables.freeze_step where it was given in passes, adds the warnings that take the corpus
// to know, and checks that the corpus has a window at all and as many as data.passes or
// data.unique_tokens keep. `windows`: windows of data.sequence_length in the corpus. Doing it twice
// changes nothing.
absl::Status ResolveHorizon(int64_t windows, LoadedConfig* loaded);

// The configuration as YAML with every default and every `auto` written out; keys without effect
// are left out. It loads back to the same Config, and that one's resolved form is the same text.
// Before ResolveHorizon a passes_over_data horizon stands as it was given.
std::string ResolvedYaml(const Config& config);

}  // namespace overtok

// The arguments that name a configuration, the same in every subcommand that takes one:
// CONFIG [--arm FILE ...] [key.path=value ...].
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "trainer/config/load.h"

namespace overtok {

struct ConfigArguments {
  std::string config;
  std::vector<std::string> arms;
  std::vector<std::string> overrides;
};

// `what`: what CONFIG may be. `arguments` has to live as long as `command`.
void AddConfigArguments(CLI::App* command, ConfigArguments* arguments,
                        const std::string& what = "Configuration file");

absl::StatusOr<LoadedConfig> Load(const ConfigArguments& arguments);
// Collective. The same on every rank, which must find the same configuration; of the ranks, the
// first alone speaks from here on.
absl::StatusOr<LoadedConfig> LoadOnAll(const ConfigArguments& arguments, Communicator& world);

}  // namespace overtok

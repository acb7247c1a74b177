#include "tools/config_arguments.h"

#include "core/comm/agreement.h"
#include "core/console.h"
#include "trainer/layout.h"

namespace overtok {

void AddConfigArguments(CLI::App* command, ConfigArguments* arguments, const std::string& what) {
  command->add_option("config", arguments->config, what)->required();
  command->add_option("overrides", arguments->overrides, "key.path=value ...");
  // One file each time it is given, so that the overrides after it are not taken for files.
  command
      ->add_option("--arm", arguments->arms,
                   "Configuration file laid over the first one, as often as needed "
                   "(configs/arms/*.yaml)")
      ->type_name("FILE")
      ->allow_extra_args(false);
}

absl::StatusOr<LoadedConfig> Load(const ConfigArguments& arguments) {
  return LoadConfig(arguments.config, arguments.overrides, arguments.arms);
}

absl::StatusOr<LoadedConfig> LoadOnAll(const ConfigArguments& arguments, Communicator& world) {
  if (world.rank() != 0) SilenceConsole();
  absl::StatusOr<LoadedConfig> loaded = Load(arguments);
  OT_RETURN_IF_ERROR(Agree(world, loaded.status()));
  OT_RETURN_IF_ERROR(CheckSameConfig(world, loaded->config));
  return loaded;
}

}  // namespace overtok

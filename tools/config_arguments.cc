#include "tools/config_arguments.h"

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

}  // namespace overtok

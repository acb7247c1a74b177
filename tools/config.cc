// overtok config: shows what a configuration resolves to, and writes the page that documents it.
#include <cstdio>
#include <memory>
#include <string>

#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/config/docs.h"

namespace overtok {
namespace {

absl::StatusOr<int> Show(const ConfigArguments& arguments) {
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, Load(arguments));
  const std::string text = ResolvedYaml(loaded.config);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

absl::StatusOr<int> Docs() {
  const std::string page = ConfigurationPage();
  std::fwrite(page.data(), 1, page.size(), stdout);
  return 0;
}

}  // namespace

void AddConfig(Program& program) {
  CLI::App* config = program.app().add_subcommand("config", "Look at configurations");
  config->require_subcommand(1);
  auto arguments = std::make_shared<ConfigArguments>();
  CLI::App* show = program.AddBelow(
      config, "show", "Print a configuration with every default and every auto written out",
      [arguments] { return Show(*arguments); });
  AddConfigArguments(show, arguments.get());
  program.AddBelow(config, "docs", "Print the page that documents all keys", Docs);
}

}  // namespace overtok

// overtok config: shows what a configuration resolves to, and writes the page that documents it.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/program.h"
#include "trainer/config/docs.h"
#include "trainer/config/load.h"

namespace overtok {
namespace {

struct ShowOptions {
  std::string config;
  std::vector<std::string> overrides;
};

absl::StatusOr<int> Show(const ShowOptions& options) {
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadConfig(options.config, options.overrides));
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
  auto options = std::make_shared<ShowOptions>();
  CLI::App* show = program.AddBelow(
      config, "show", "Print a configuration with every default and every auto written out",
      [options] { return Show(*options); });
  show->add_option("config", options->config, "Configuration file")->required();
  show->add_option("overrides", options->overrides, "key.path=value ...");
  program.AddBelow(config, "docs", "Print the page that documents all keys", Docs);
}

}  // namespace overtok

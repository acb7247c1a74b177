// `overtok plan`: what a configuration will take, without taking it.
#include "trainer/plan.h"

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/program.h"
#include "trainer/config/load.h"

namespace overtok {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  bool json = false;
};

absl::StatusOr<int> Run(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadConfig(arguments.config, arguments.overrides));
  OT_ASSIGN_OR_RETURN(const Plan plan, MakePlan(std::move(loaded)));
  const std::string text = arguments.json ? plan.ToJson() : plan.ToText();
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

void AddPlan(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.Add(
      "plan", "Parameters, memory, FLOPs, tokens and disk of a configuration; allocates nothing",
      [arguments] { return Run(*arguments); });
  command->add_option("config", arguments->config, "Configuration file")->required();
  command->add_option("overrides", arguments->overrides, "key.path=value ...");
  command->add_flag("--json", arguments->json, "One JSON object");
}

}  // namespace overtok

// `overtok plan`: what a configuration will take, without taking it.
#include "trainer/plan.h"

#include <cstdio>
#include <memory>
#include <string>

#include "tools/config_arguments.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  ConfigArguments config;
  bool json = false;
};

absl::StatusOr<int> Run(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, Load(arguments.config));
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
  AddConfigArguments(command, &arguments->config);
  command->add_flag("--json", arguments->json, "One JSON object");
}

}  // namespace overtok

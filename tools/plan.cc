// `overtok plan`: what a configuration will take, without taking it.
#include "trainer/plan.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/plan_ranks.h"

namespace overtok {
namespace {

struct Arguments {
  ConfigArguments config;
  int ranks = 0;  // 0: one, told in full
  int ranks_per_node = 0;
  std::string hardware;
  bool json = false;
};

void Print(const std::string& text) { std::fputs(text.c_str(), stdout); }

absl::StatusOr<int> Run(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, Load(arguments.config));
  if (arguments.ranks == 0 && arguments.hardware.empty()) {
    OT_ASSIGN_OR_RETURN(const Plan plan, MakePlan(std::move(loaded)));
    Print(arguments.json ? plan.ToJson() : plan.ToText());
    return 0;
  }
  RanksOptions options;
  options.ranks = std::max(1, arguments.ranks);
  options.ranks_per_node = arguments.ranks_per_node;
  if (!arguments.hardware.empty()) {
    OT_ASSIGN_OR_RETURN(options.hardware, LoadHardware(arguments.hardware));
  }
  OT_ASSIGN_OR_RETURN(const RanksPlan plan, PlanRanks(std::move(loaded), options));
  Print(arguments.json ? plan.ToJson() : plan.ToText());
  return 0;
}

}  // namespace

void AddPlan(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.Add(
      "plan", "Parameters, memory, FLOPs, tokens and disk of a configuration; allocates nothing",
      [arguments] { return Run(*arguments); });
  AddConfigArguments(command, &arguments->config);
  command
      ->add_option("--ranks", arguments->ranks,
                   "Memory, bytes sent and step time of a run on so many ranks")
      ->check(CLI::Range(1, 1 << 20));
  command
      ->add_option("--ranks-per-node", arguments->ranks_per_node,
                   "Ranks of a node (the devices of the machine's nodes, or all)")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--hardware", arguments->hardware,
                      "Machine to predict a step's time for (configs/hardware/*.yaml)");
  command->add_flag("--json", arguments->json, "One JSON object");
}

}  // namespace overtok

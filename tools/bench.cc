// `overtok bench`: timings that say what this machine does with a configuration (step) and with
// single ops (ops).
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/program.h"
#include "trainer/bench_step.h"
#include "trainer/config/load.h"

namespace overtok {
namespace {

struct StepArguments {
  std::string config;
  std::vector<std::string> overrides;
  BenchStepOptions options;
};

absl::StatusOr<int> RunStep(const StepArguments& arguments) {
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadConfig(arguments.config, arguments.overrides));
  OT_ASSIGN_OR_RETURN(const BenchStepResult result, BenchStep(loaded.config, arguments.options));
  std::printf("%s\n", result.ToJson().c_str());
  return 0;
}

}  // namespace

void AddBench(Program& program) {
  CLI::App* bench =
      program.app().add_subcommand("bench", "Time whole training steps, or single ops");
  bench->require_subcommand(1);

  auto arguments = std::make_shared<StepArguments>();
  CLI::App* step = program.AddBelow(bench, "step",
                                    "Whole training steps on random tokens; prints one JSON object",
                                    [arguments] { return RunStep(*arguments); });
  step->add_option("config", arguments->config, "Configuration file")->required();
  step->add_option("overrides", arguments->overrides, "key.path=value ...");
  step->add_option("--warmup", arguments->options.warmup, "Steps that are not counted")
      ->capture_default_str();
  step->add_option("--repetitions", arguments->options.repetitions, "Steps that are counted")
      ->capture_default_str();

  AddBenchOps(program, bench);
}

}  // namespace overtok

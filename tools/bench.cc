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

// One line an op: time in a step, its share, calls, and the rate of what it has to do.
void PrintOps(const BenchStepResult& result) {
  const auto steps = static_cast<double>(result.steps);
  double covered = 0;
  std::printf("\n%-40s %9s %7s %7s %16s\n", "op", "ms/step", "share", "calls", "rate");
  for (const OpTime& op : result.ops) {
    const double ms = op.seconds / steps * 1e3;
    covered += ms;
    std::printf("%-40s %9.2f %6.1f%% %7.0f %10.1f %s\n", op.name.c_str(), ms,
                100 * ms / result.step_ms, static_cast<double>(op.calls) / steps,
                op.work / op.seconds / 1e9, op.products ? "GFLOP/s" : "GB/s");
  }
  std::printf("%-40s %9.2f %6.1f%%\n", "everything else", result.step_ms - covered,
              100 * (result.step_ms - covered) / result.step_ms);
}

absl::StatusOr<int> RunStep(const StepArguments& arguments) {
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadConfig(arguments.config, arguments.overrides));
  OT_ASSIGN_OR_RETURN(const BenchStepResult result, BenchStep(loaded.config, arguments.options));
  std::printf("%s\n", result.ToJson().c_str());
  if (arguments.options.by_op) PrintOps(result);
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

  step->add_flag("--by-op", arguments->options.by_op, "Also print where the time goes, op by op");
  AddBenchOps(program, bench);
}

}  // namespace overtok

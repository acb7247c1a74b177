// `overtok bench`: timings that say what this machine does with a configuration (step) and with
// single ops (ops).
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/bench_step.h"

namespace overtok {
namespace {

struct StepArguments {
  ConfigArguments config;
  std::string ids = "uniform";
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

absl::StatusOr<int> RunStep(const StepArguments& arguments, Communicator& world,
                            int local_rank) {
  BenchStepOptions options = arguments.options;
  options.local_rank = local_rank;
  if (arguments.ids == "zipf") {
    options.ids = IdDistribution::kZipf;
  } else if (arguments.ids != "uniform") {
    return absl::InvalidArgumentError(
        absl::StrCat("--ids is \"", arguments.ids, "\", expected uniform or zipf"));
  }
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadOnAll(arguments.config, world));
  OT_ASSIGN_OR_RETURN(const BenchStepResult result, BenchStep(loaded, options, &world));
  if (world.rank() != 0) return 0;
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
  CLI::App* step = program.AddParallelBelow(
      bench, "step", "Whole training steps on random tokens; prints one JSON object",
      [arguments](Communicator& world, const LaunchFacts& launch) {
        return RunStep(*arguments, world, launch.local_rank);
      });
  AddConfigArguments(step, &arguments->config);
  step->add_option("--warmup", arguments->options.warmup, "Steps that are not counted")
      ->capture_default_str();
  step->add_option("--repetitions", arguments->options.repetitions, "Steps that are counted")
      ->capture_default_str();
  step->add_option("--ids", arguments->ids,
                   "uniform, or zipf: id i as often as 1 / (i + 1), about what text does")
      ->capture_default_str();
  step->add_option("--table-age", arguments->options.table_age,
                   "Start at this step, with tables as so many steps leave them")
      ->capture_default_str();
  step->add_flag("--by-op", arguments->options.by_op, "Also print where the time goes, op by op");
  AddBenchOps(program, bench);
}

}  // namespace overtok

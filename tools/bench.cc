// `overtok bench`: timings that say what this machine does with a configuration (step) and with
// single ops (ops), or what a described machine would do.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/bench_step.h"
#include "trainer/forecast.h"

namespace overtok {
namespace {

struct StepArguments {
  ConfigArguments config;
  std::string ids = "uniform", hardware;
  bool predict = false;
  BenchStepOptions options;
};

// One line an op: time in a step, its share, calls, and the rate of what it has to do.
void PrintOp(const OpTime& op, double calls, double ms, double step_ms) {
  const bool products = op.work.products();
  const double work = products ? op.work.flops : op.work.all_bytes();
  std::printf("%-40s %9.2f %6.1f%% %7.0f %10.1f %s\n", op.name.c_str(), ms, 100 * ms / step_ms,
              calls, work * calls / static_cast<double>(op.calls) / (ms * 1e6),
              products ? "GFLOP/s" : "GB/s");
}
void PrintHeader() {
  std::printf("\n%-40s %9s %7s %7s %16s\n", "op", "ms/step", "share", "calls", "rate");
}

void PrintOps(const BenchStepResult& result) {
  const auto steps = static_cast<double>(result.steps);
  double covered = 0;
  if (result.device != "cpu")
    std::printf("\nTimes of ops include a wait for the device before and after each.\n");
  PrintHeader();
  for (const OpTime& op : result.ops) {
    const double ms = op.seconds / steps * 1e3;
    covered += ms;
    PrintOp(op, static_cast<double>(op.calls) / steps, ms, result.step_ms);
  }
  std::printf("%-40s %9.2f %6.1f%%\n", "everything else", result.step_ms - covered,
              100 * (result.step_ms - covered) / result.step_ms);
}

void PrintForecast(const StepForecast& forecast) {
  for (const ForecastStage& stage : forecast.stages) {
    const double step_ms = stage.seconds() * 1e3;
    std::printf("\n%lld candidates, %.1f%% of the steps: %.1f ms, %.0f tokens/s, predicted\n",
                static_cast<long long>(stage.span.candidates), 100 * stage.share, step_ms,
                forecast.tokens / stage.seconds());
    for (int p = 0; p < kStepParts; ++p) {
      const auto part = static_cast<StepPart>(p);
      const double ms = stage.seconds(part) * 1e3;
      if (ms > 0) std::printf("  %-38s %9.2f %6.1f%%\n", NameOf(part), ms, 100 * ms / step_ms);
    }
    PrintHeader();
    for (const ForecastOp& op : stage.ops)
      PrintOp(op.op, static_cast<double>(op.op.calls), op.seconds * 1e3, step_ms);
  }
}

absl::StatusOr<StepForecast> Forecast(const LoadedConfig& loaded, const StepArguments& arguments,
                                      IdDistribution ids) {
  if (arguments.hardware.empty()) {
    return absl::InvalidArgumentError(
        "--predict needs a machine: --hardware FILE (configs/hardware/*.yaml)");
  }
  OT_ASSIGN_OR_RETURN(const Hardware hardware, LoadHardware(arguments.hardware));
  return ForecastSteps(loaded.config, ids, arguments.options.seed, hardware);
}

// What the machine would make of the measured step.
absl::Status HoldAgainstForecast(const LoadedConfig& loaded, const StepArguments& arguments,
                                 IdDistribution ids, BenchStepResult* result) {
  OT_ASSIGN_OR_RETURN(const StepForecast forecast, Forecast(loaded, arguments, ids));
  for (const ForecastStage& stage : forecast.stages) {
    if (stage.span.candidates == result->candidates)
      result->predicted_step_ms = stage.seconds() * 1e3;
  }
  return absl::OkStatus();
}

absl::StatusOr<int> RunStep(const StepArguments& arguments, Communicator& world) {
  BenchStepOptions options = arguments.options;
  OT_ASSIGN_OR_RETURN(options.ids, IdDistributionNamed(arguments.ids));
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadOnAll(arguments.config, world));
  if ((arguments.predict || !arguments.hardware.empty()) && world.size() > 1) {
    return absl::InvalidArgumentError(
        "--predict and --hardware count the step of one rank; `overtok plan --ranks` predicts "
        "those of many");
  }
  if (arguments.predict) {
    OT_ASSIGN_OR_RETURN(const StepForecast forecast, Forecast(loaded, arguments, options.ids));
    std::printf("%s\n", forecast.ToJson().c_str());
    if (options.by_op) PrintForecast(forecast);
    return 0;
  }
  OT_ASSIGN_OR_RETURN(BenchStepResult result, BenchStep(loaded, options, &world));
  if (!arguments.hardware.empty())
    OT_RETURN_IF_ERROR(HoldAgainstForecast(loaded, arguments, options.ids, &result));
  if (world.rank() != 0) return 0;
  std::printf("%s\n", result.ToJson().c_str());
  if (options.by_op) PrintOps(result);
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
      [arguments](Communicator& world, const LaunchFacts& /*launch*/) {
        return RunStep(*arguments, world);
      });
  AddConfigArguments(step, &arguments->config);
  step->add_option("--warmup", arguments->options.warmup, "Steps that are not counted")
      ->capture_default_str();
  step->add_option("--repetitions", arguments->options.repetitions, "Steps that are counted")
      ->capture_default_str();
  step->add_option("--ids", arguments->ids,
                   "uniform; zipf: id i as often as 1 / (i + 1); text: (i + 1)^-1.16, as many "
                   "different ones as English text has")
      ->capture_default_str();
  step->add_option("--table-age", arguments->options.table_age,
                   "Start at this step, with tables as so many steps leave them")
      ->capture_default_str();
  step->add_flag("--by-op", arguments->options.by_op, "Also print where the time goes, op by op");
  step->add_option("--hardware", arguments->hardware,
                   "Machine whose predicted step stands beside the measured one "
                   "(configs/hardware/*.yaml)");
  step->add_flag("--predict", arguments->predict,
                 "Measure nothing: count what a step of each stage does, and tell how long that "
                 "takes on the machine");
  AddBenchOps(program, bench);
}

}  // namespace overtok

#include "trainer/step_metrics.h"

#include "trainer/config/derived.h"

namespace overtok {
namespace {

// Totals that place a point on a curve of loss against compute. In double: they pass 2^63 soon.
void AddTotals(const RunConstants& run, const TrainingState& state, MetricsLine* line) {
  const auto tokens = static_cast<double>(state.tokens);
  line->Add("throughput/total_tokens", state.tokens)
      .Add("throughput/total_gflops", run.flops_per_token * tokens / 1e9)
      .Add("throughput/total_gflops_causal", run.causal_flops_per_token * tokens / 1e9)
      .Add("flops/6nd_backbone", run.backbone_per_token * tokens)
      .Add("parameter_count", run.parameters);
}

}  // namespace

RunConstants::RunConstants(const Config& config)
    : steps(config.train.steps),
      parameters(CountParameters(config.model).total()),
      flops_per_token(LevanterForwardFlops(config.model, config.data.sequence_length).training()),
      causal_flops_per_token(
          CausalForwardFlops(config.model, config.data.sequence_length).training()),
      backbone_per_token(BackboneFlops(config.model, 1)),
      tokens_per_step(config.tokens_per_step()),
      sequences_per_step(config.train.batch_sequences),
      sequence_length(config.data.sequence_length),
      z_loss(config.loss.z_loss != 0) {}

MetricsLine TrainLine(const RunConstants& run, const TrainingState& state, const StepResult& result,
                      const DataFacts& data, const StepTimes& times) {
  MetricsLine line(state.step, "train");
  line.Add("global_step", state.step)
      .Add("run_progress", static_cast<double>(state.step) / static_cast<double>(run.steps))
      .Add("train/loss", result.loss_main);
  if (run.z_loss) line.Add("train/z_loss", result.z_loss);
  line.Add("optim/learning_rate", result.lr)
      .Add("optim/adam_lr", result.adam_lr)
      .Add("grad/norm/total", result.total_norm);
  for (int g = 0; g < kOptimizerGroups; ++g) {
    line.Add(absl::StrCat("grad/norm/", NameOf(static_cast<OptimizerGroup>(g))),
             result.norms[static_cast<size_t>(g)]);
  }
  line.Add("train/current_epoch", data.epoch)
      .Add("data/distinct_samples", data.distinct_samples)
      .Add("data/max_repeats", data.max_repeats)
      .AddHash("data/ids_hash", state.ids_hash);
  AddTotals(run, state, &line);
  line.Add("throughput/flops_per_example",
           run.flops_per_token * static_cast<double>(run.sequence_length))
      .Add("throughput/device_kind", "cpu");
  const double rate = times.seconds > 0 ? 1 / times.seconds : 0;
  line.Add("throughput/duration", times.seconds)
      .Add("throughput/loading_time", times.waited)
      .Add("throughput/tokens_per_second", static_cast<double>(run.tokens_per_step) * rate)
      .Add("throughput/examples_per_second", static_cast<double>(run.sequences_per_step) * rate)
      .Add("memory/peak_gib", static_cast<double>(times.peak_bytes) / (1 << 30));
  return line;
}

MetricsLine EvalLine(const RunConstants& run, const TrainingState& state,
                     const EvaluationScores& scores) {
  MetricsLine line(state.step, "eval");
  line.Add("global_step", state.step);
  scores.AddTo(&line);
  if (state.best.has_value()) {
    line.Add("eval/best_metric", state.best->metric)
        .Add("eval/best_loss", state.best->value)
        .Add("eval/best_step", state.best->step);
  }
  AddTotals(run, state, &line);
  line.AddHash("data/ids_hash", state.ids_hash);
  return line;
}

}  // namespace overtok

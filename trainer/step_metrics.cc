#include "trainer/step_metrics.h"

#include <cmath>

#include "absl/strings/strip.h"
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

void AddHeads(const RunConstants& run, const StepResult& result, MetricsLine* line) {
  for (const HeadResult& head : result.heads) {
    line->Add(LossTag(run, head), head.loss);
    if (head.kind == HeadKind::kMain && run.z_loss) line->Add("train/z_loss", result.z_loss);
  }
  // With one head and no z-loss it is the loss above.
  if (result.heads.size() > 1 || run.z_loss) line->Add("train/objective", result.loss);
  for (const HeadResult& head : result.heads) {
    if (!head.sampled) continue;
    const CandidateFacts& facts = head.candidates;
    const std::string prefix = absl::StrCat("sampled/", NameOf(head.kind), "/");
    line->Add(prefix + "candidates", facts.candidates)
        .Add(prefix + "present_mean", facts.present_mean)
        .Add(prefix + "present_max", facts.present_max)
        .Add(prefix + "overflow_share", facts.blocks > 0 ? static_cast<double>(facts.overflows) /
                                                               static_cast<double>(facts.blocks)
                                                         : 0.0);
  }
}

}  // namespace

std::string LossTag(const RunConstants& run, const HeadResult& head) {
  const bool main = head.kind == HeadKind::kMain;
  const char* name = "loss";
  if (head.sampled) {
    name = "sampled_softmax_loss";
  } else if (run.focal && (main || head.kind == HeadKind::kSecondToken)) {
    name = "focal_loss";
  }
  return main ? absl::StrCat("train/", name) : absl::StrCat("train/", NameOf(head.kind), "/", name);
}

double LossOfIgnorance(const Config& config, const HeadResult& head) {
  int64_t classes = ClassesOf(config.model, head.kind);
  if (head.sampled) {
    const bool hashed = IsHashed(head.kind);
    const Correction correction =
        hashed ? config.model.ngram_head->correction : config.loss.sampled_softmax->correction;
    // Blocks that overflowed were scored over all classes; the mean is between the two.
    if (correction == Correction::kNone && head.candidates.overflows == 0) {
      classes = head.candidates.candidates;
    }
  }
  return std::log(static_cast<double>(classes));
}

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
      vocabulary(config.model.vocab_size),
      z_loss(config.loss.z_loss != 0),
      focal(config.loss.focal_gamma != 0) {}

MetricsLine TrainLine(const RunConstants& run, const TrainingState& state, const StepResult& result,
                      const DataFacts& data, const StepTimes& times) {
  MetricsLine line(state.step, "train");
  line.Add("global_step", state.step)
      .Add("run_progress", static_cast<double>(state.step) / static_cast<double>(run.steps));
  AddHeads(run, result, &line);
  line.Add("optim/learning_rate", result.lr)
      .Add("optim/adam_lr", result.adam_lr)
      .Add("grad/norm/total", result.total_norm);
  for (int g = 0; g < kOptimizerGroups; ++g) {
    line.Add(absl::StrCat("grad/norm/", NameOf(static_cast<OptimizerGroup>(g))),
             result.norms[static_cast<size_t>(g)]);
  }
  for (const TableFacts& table : result.tables) {
    line.Add(absl::StrCat("tables/", table.name, "/rows_touched"), table.rows_touched);
  }
  if (result.tables_frozen) line.AddFlag("tables/frozen", true);
  line.Add("train/current_epoch", data.epoch)
      .Add("data/pass", data.pass)
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
                     const EvaluationScores& scores, double epoch, int64_t candidates) {
  MetricsLine line(state.step, "eval");
  line.Add("global_step", state.step);
  if (candidates < run.vocabulary) {
    line.AddFlag("eval/sampled_stage", true).Add("eval/stage_candidates", candidates);
  }
  scores.AddTo(&line);
  if (state.best.has_value()) {
    line.Add("eval/best_metric", state.best->metric)
        .Add("eval/best_loss", state.best->value)
        .Add("eval/best_step", state.best->step);
  }
  line.Add("train/current_epoch", epoch);
  AddTotals(run, state, &line);
  line.AddHash("data/ids_hash", state.ids_hash);
  return line;
}

MetricsLine StageEvent(const RunConstants& run, const TrainingState& state, int64_t candidates) {
  MetricsLine line(state.step, "event");
  line.Add("event", "stage").Add("candidates", candidates);
  line.AddFlag("full_softmax", candidates >= run.vocabulary);
  AddTotals(run, state, &line);
  return line;
}

MetricsLine PassEvent(const RunConstants& run, const TrainingState& state, int64_t pass) {
  MetricsLine line(state.step, "event");
  line.Add("event", "pass").Add("pass", pass);
  AddTotals(run, state, &line);
  return line;
}

}  // namespace overtok

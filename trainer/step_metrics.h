// The lines of metrics.jsonl that a training run writes, with levanter's names where it has one
// (docs/formats/metrics.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "trainer/checkpoint.h"
#include "trainer/config/config.h"
#include "trainer/evaluation_scores.h"
#include "trainer/metrics.h"
#include "trainer/train_step.h"

namespace overtok {

// What is the same for every step of a run.
struct RunConstants {
  explicit RunConstants(const Config& config);
  int64_t steps = 0, parameters = 0;
  double flops_per_token = 0;         // forward and backward, as levanter counts (recipe's formula)
  double causal_flops_per_token = 0;  // what a causal model computes
  double backbone_per_token = 0;      // 6 N
  int64_t tokens_per_step = 0, sequences_per_step = 0, sequence_length = 0;
  int64_t vocabulary = 0;  // V
  bool z_loss = false, focal = false;
};

// Measured at a step; these differ from run to run.
struct StepTimes {
  double seconds = 0;  // of the whole step, waiting for data included
  double waited = 0;   // for data
  int64_t peak_bytes = 0;
};

struct DataFacts {
  double epoch = 0;  // passes over the data so far
  int64_t pass = 0;  // of the step's first window
  int64_t distinct_samples = 0, max_repeats = 0;
};

// What `result.heads[h]` differentiated is called: "train/loss" or "train/<head>/loss" for a
// cross-entropy over all classes, with sampled_softmax_loss or focal_loss in place of loss for what
// is none, so that curves of different quantities never share a name.
std::string LossTag(const RunConstants& run, const HeadResult& head);

// What a head that knows nothing loses: ln of the number of classes it is scored over. Sums over
// candidates that are corrected to estimate the sum over all classes count all of them.
double LossOfIgnorance(const Config& config, const HeadResult& head);

// `state` is the state after the step.
MetricsLine TrainLine(const RunConstants& run, const TrainingState& state, const StepResult& result,
                      const DataFacts& data, const StepTimes& times);
// `state` has the evaluation's place among the best already. `epoch`: passes over the data so far.
// `candidates`: of the stage behind the evaluation (run_stage.h), V for the full softmax.
MetricsLine EvalLine(const RunConstants& run, const TrainingState& state,
                     const EvaluationScores& scores, double epoch, int64_t candidates);
// Before the first step of a stage of the sampled softmax, or of a pass over the data: places that
// plots mark.
MetricsLine StageEvent(const RunConstants& run, const TrainingState& state, int64_t candidates);
MetricsLine PassEvent(const RunConstants& run, const TrainingState& state, int64_t pass);

}  // namespace overtok

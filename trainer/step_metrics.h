// The lines of metrics.jsonl that a training run writes, with levanter's names where it has one
// (docs/formats/metrics.md).
#pragma once

#include <cstdint>

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
  bool z_loss = false;
};

// Measured at a step; these differ from run to run.
struct StepTimes {
  double seconds = 0;  // of the whole step, waiting for data included
  double waited = 0;   // for data
  int64_t peak_bytes = 0;
};

struct DataFacts {
  double epoch = 0;  // passes over the data so far
  int64_t distinct_samples = 0, max_repeats = 0;
};

// `state` is the state after the step.
MetricsLine TrainLine(const RunConstants& run, const TrainingState& state, const StepResult& result,
                      const DataFacts& data, const StepTimes& times);
// `state` has the evaluation's place among the best already.
MetricsLine EvalLine(const RunConstants& run, const TrainingState& state,
                     const EvaluationScores& scores);

}  // namespace overtok

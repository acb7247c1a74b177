// `overtok bench step`: whole training steps of a configuration on random tokens, timed, with fresh
// ids in every step. The same code path as training; the loss means nothing, the work is real. No
// shards are read.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/ops/profile.h"
#include "core/status.h"
#include "trainer/bench_batches.h"
#include "trainer/config/load.h"

namespace overtok {

struct BenchStepOptions {
  int64_t warmup = 2;       // steps not counted
  int64_t repetitions = 7;  // steps counted; medians are reported
  bool by_op = false;       // time every op as well
  uint64_t seed = 1;        // of the token ids
  IdDistribution ids = IdDistribution::kUniform;
  // Start at this step, with tables as so many steps on such ids leave them.
  int64_t table_age = 0;
};

struct BenchStepResult {
  double tokens_per_second = 0;  // of the median step
  // Medians, each on its own. A step on a device that works behind the host lasts from the results
  // of the one before to its own, as in a training run.
  double step_ms = 0, optimizer_ms = 0;
  double forward_ms = 0, backward_ms = 0;  // on the CPU
  // On such a device: its time from a step's first op to the last (the rest of step_ms it was
  // idle), losses and gradients of that; and the host's, to name what the step works on and to hand
  // it over, which it does while the device is at the step before.
  double device_ms = 0, gradients_ms = 0, naming_ms = 0, host_ms = 0;
  double gflops = 0;    // useful work: 3 * the forward FLOPs it computes, of the median step
  double peak_gib = 0;  // peak resident memory of the process; of several the largest
  // What the plan says the step takes, of several ranks the largest: on a device with memory of its
  // own there, and beside it in host memory.
  double planned_gib = 0, host_planned_gib = 0;
  int threads = 0;  // of a rank
  int ranks = 1;
  int64_t tensor = 1;
  // That a step sends by kind (core/comm/communicator.h), all ranks together; of the last step.
  std::array<int64_t, kTrafficKinds> bytes_sent{};
  int64_t bytes_sent_most = 0;  // of one rank, all kinds
  std::string precision, device, ids;
  bool by_op = false;
  // Of the last step: P of the main head and its stage, from 0; V and the number of stages with the
  // full softmax.
  int64_t candidates = 0, stage = 0;
  double overflow_share = 0;  // of the main head's blocks, over the counted steps
  int64_t first_step = 0;     // table_age
  // With by_op: totals over the counted steps, longest first, and how many steps these were. On a
  // device with memory of its own every op was timed between two waits, which makes the step
  // longer.
  std::vector<OpTime> ops;
  int64_t steps = 0;
  // Of a described machine (ForecastSteps), where one was named: a step of this stage; 0: none.
  double predicted_step_ms = 0;
  std::string ToJson() const;  // one object, one line
};

// Collective. Times of the slowest rank.
absl::StatusOr<BenchStepResult> BenchStep(const LoadedConfig& loaded,
                                          const BenchStepOptions& options, Communicator* world);

}  // namespace overtok

// The training run around the step: preflight, resume, metrics, evaluation, checkpoints, signals.
// At an equal number of threads, a run that was stopped or killed and started again ends with the
// same bits as one that was not: values, order of the data, metrics (times apart), best value.
#pragma once

#include <cstdint>
#include <functional>

#include "core/comm/communicator.h"
#include "core/comm/launch.h"
#include "core/status.h"
#include "trainer/config/load.h"

namespace overtok {

struct TrainOptions {
  bool fresh = false;  // refuse a directory that holds a run already
  LaunchFacts launch;  // of this rank: what is recorded, and how many ranks share the machine
  // Called after every step and all that belongs to it, with the number of completed steps.
  std::function<void(int64_t)> after_step;
};

// Collective. Trains `loaded` to its horizon in checkpoint.directory, from the newest marked
// checkpoint there if there is one. Returns 0, or kExitInterrupted after a signal, with everything
// saved. Errors: the user's mistakes, before the first step where that is possible; a step that is
// not finite; a disk that is full. The checkpoints that were there stay. Rank 0 alone writes what
// is not a tensor and speaks.
absl::StatusOr<int> Train(LoadedConfig loaded, const TrainOptions& options, Communicator* world);

}  // namespace overtok

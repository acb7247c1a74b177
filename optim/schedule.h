// The learning-rate multiplier: a pure function of (schedule, total steps, step), so a resumed run
// needs no scheduler state.
#pragma once

#include <cstdint>

#include "optim/config.h"

namespace overtok {

// Steps of the linear schedule's fall: int(decay * steps), truncated.
int64_t DecaySteps(const ScheduleConfig& schedule, int64_t total_steps);

// Multiplier of step t (0 .. total_steps - 1; later steps give the end value), with r =
// min_lr_ratio and T = total_steps:
//   t < warmup_steps            t / warmup_steps, so step 0 of a warm-up has rate 0
//   linear, D = DecaySteps      r + (1 - r) * clamp(1 - (t - (T - D)) / D, 0, 1); D = 0: 1
//   cosine, w = warmup_steps    r + (1 - r) * (1 + cos(pi * min(1, (t - w) / (T - w)))) / 2
double LrScale(const ScheduleConfig& schedule, int64_t total_steps, int64_t step);

}  // namespace overtok

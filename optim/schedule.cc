#include "optim/schedule.h"

#include <algorithm>
#include <cmath>

namespace overtok {

int64_t DecaySteps(const ScheduleConfig& schedule, int64_t total_steps) {
  return static_cast<int64_t>(schedule.decay * static_cast<double>(total_steps));
}

double LrScale(const ScheduleConfig& schedule, int64_t total_steps, int64_t step) {
  const int64_t warmup = schedule.warmup_steps;
  if (step < warmup) return static_cast<double>(step) / static_cast<double>(warmup);
  double shape = 1;
  if (schedule.type == ScheduleConfig::Type::kCosine) {
    const int64_t falling = total_steps - warmup;
    // A run that is all warm-up has no fall; steps past its end stay at the end value.
    const double progress =
        falling > 0
            ? std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(falling))
            : 1.0;
    shape = 0.5 * (1 + std::cos(M_PI * progress));
  } else if (const int64_t decay = DecaySteps(schedule, total_steps); decay > 0) {
    const double fallen =
        static_cast<double>(step - (total_steps - decay)) / static_cast<double>(decay);
    shape = std::clamp(1 - fallen, 0.0, 1.0);
  }
  return schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * shape;
}

}  // namespace overtok

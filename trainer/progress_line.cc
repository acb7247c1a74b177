#include "trainer/progress_line.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/console.h"

namespace overtok {

std::string FormatProgress(const ProgressFacts& facts) {
  const std::string steps = absl::StrCat(facts.steps);
  const double part = facts.steps > 0
                          ? 100 * static_cast<double>(facts.step) / static_cast<double>(facts.steps)
                          : 100;
  const auto known = [](double value, const std::string& text) { return value < 0 ? "?" : text; };
  return absl::StrFormat(
      "step %*d/%s (%.1f%%) %s %.4f gnorm %.3f lr %.1e tok/s %s ms/step %s mem %s data %.1f%% "
      "epoch %.2f eta %s",
      static_cast<int>(steps.size()), facts.step, steps, part, facts.loss_name, facts.loss,
      facts.gradient_norm, facts.lr,
      known(facts.tokens_per_second, FormatCount(facts.tokens_per_second)),
      known(facts.step_seconds, absl::StrFormat("%.1f", 1000 * facts.step_seconds)),
      FormatBytes(facts.memory_bytes), 100 * facts.waiting, facts.epoch,
      FormatDuration(facts.seconds_left));
}

void StepTimer::Add(double seconds) {
  ++steps_;
  if (steps_ == 1) return;
  // Plain mean at first, then the last fifty steps or so.
  const double weight = 1.0 / static_cast<double>(std::min<int64_t>(steps_ - 1, 50));
  mean_ = mean_ < 0 ? seconds : mean_ + weight * (seconds - mean_);
}

}  // namespace overtok

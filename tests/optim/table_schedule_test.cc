#include "optim/table_schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace overtok {
namespace {

constexpr int64_t kSteps = 1200;

OptimizerConfig BaseConfig() {
  OptimizerConfig config;
  config.adam_lr = 0.008;
  config.schedule.warmup_steps = 100;
  return config;
}

std::vector<Tensor> Sums(const TableReplay& replay) {
  return {replay.moved, replay.moved_eps, replay.moved_eps2, replay.series_from, replay.kept};
}

bool SameBits(const TableReplay& a, const TableReplay& b) {
  const std::vector<Tensor> first = Sums(a), second = Sums(b);
  for (size_t k = 0; k < first.size(); ++k) {
    if (std::memcmp(first[k].raw(), second[k].raw(), static_cast<size_t>(a.step + 1) * 8) != 0)
      return false;
  }
  return a.step == b.step;
}

std::vector<OptimizerConfig> Configs() {
  std::vector<OptimizerConfig> configs(4, BaseConfig());
  configs[1].tables.untouched_decay = 3;
  configs[2].beta2 = 0.8;   // no convergence
  configs[3].beta2 = 0.83;  // a window longer than the run
  return configs;
}

// A schedule asked out of order, or for the first time, gives the bits of one that followed the
// run.
TEST(TableSchedule, IsAPureFunctionOfTheStep) {
  for (const OptimizerConfig& config : Configs()) {
    Memory memory(Memory::Mode::kReal);
    TableSchedule in_order(config, kSteps, &memory), back(config, kSteps, &memory);
    back.At(kSteps);
    for (int64_t step = 0; step <= kSteps; ++step) {
      const TableReplay& expected = in_order.At(step);
      if (step % 97 != 0 && step != kSteps) continue;
      Memory own(Memory::Mode::kReal);
      TableSchedule fresh(config, kSteps, &own);
      EXPECT_TRUE(SameBits(fresh.At(step), expected)) << step;
      back.At(kSteps - step);
      EXPECT_TRUE(SameBits(back.At(step), expected)) << step;
    }
  }
}

// The sums by their definition, over all steps, in long double.
TEST(TableSchedule, SumsFollowTheirDefinition) {
  OptimizerConfig config = BaseConfig();
  for (const double decay : {0.0, 3.0}) {
    config.tables.untouched_decay = decay;
    Memory memory(Memory::Mode::kReal);
    TableSchedule schedule(config, kSteps, &memory);
    for (const int64_t step : {1, 50, 437, 438, 900, 1200}) {
      const TableReplay& replay = schedule.At(step);
      EXPECT_EQ(replay.step, step);
      for (int64_t last = 0; last <= step; last += last < 20 ? 1 : 53) {
        const long double rho = 0.9L / std::sqrt(0.98L);
        long double moved[3] = {}, kept = 1;
        for (int64_t i = step - 1; i >= last; --i) {
          const auto j = static_cast<long double>(i - last + 1);
          const long double c1 = 1 - std::pow(0.9L, i + 1.0L), c2 = 1 - std::pow(0.98L, i + 1.0L);
          const long double term = schedule.Rate(i) * std::pow(rho, j) * std::sqrt(c2) / c1 * kept;
          const long double e = std::sqrt(c2) * std::pow(0.98L, -j / 2);
          for (int k = 0; k < 3; ++k) moved[k] += term * std::pow(e, static_cast<long double>(k));
          kept *= 1 - schedule.Rate(i) * decay;
        }
        const double found[3] = {replay.moved.data<double>()[last],
                                 replay.moved_eps.data<double>()[last],
                                 replay.moved_eps2.data<double>()[last]};
        // 437 products round to 2^-53 each; what the window drops is 2^-60 of the first term for
        // the movement, and more of the corrections, whose terms fall more slowly: at eps where
        // they count, the whole sum is 2^-8 of the movement at most.
        const long double relative[3] = {1e-13L, 1e-10L, 1e-7L};
        for (int k = 0; k < 3; ++k)
          EXPECT_TRUE(std::abs(found[k] - moved[k]) <= relative[k] * moved[k])
              << step << ", " << last << ", " << k << ": " << found[k];
        EXPECT_TRUE(std::abs(replay.kept.data<double>()[last] - kept) <= 1e-12L * kept);
      }
    }
  }
}

// At a constant rate of 1 a hit late in training moves a row by 7.78 in all.
TEST(TableSchedule, AnIsolatedHitTravelsAsPublished) {
  OptimizerConfig config = BaseConfig();
  config.schedule.warmup_steps = 0;
  config.schedule.decay = 0;
  config.adam_lr = 1;
  Memory memory(Memory::Mode::kReal);
  TableSchedule schedule(config, 3000, &memory);
  const TableReplay& replay = schedule.At(3000);
  // First step: (1 - beta1) / sqrt(1 - beta2) = 0.7071; its silent steps the same times rho / (1 -
  // rho).
  const double first = 0.1 / std::sqrt(0.02);
  EXPECT_TRUE(std::abs(first * (1 + replay.moved.data<double>()[2000]) - 7.78) <= 5e-3);
}

TEST(TableSchedule, APlannedRunTakesTheSameMemory) {
  Memory real(Memory::Mode::kReal), dry(Memory::Mode::kDry);
  const TableSchedule a(BaseConfig(), kSteps, &real), b(BaseConfig(), kSteps, &dry);
  EXPECT_EQ(real.total(), dry.total());
  EXPECT_EQ(a.Rate(50), 0.004);
  EXPECT_EQ(b.Rate(50), 0.004);
}

}  // namespace
}  // namespace overtok

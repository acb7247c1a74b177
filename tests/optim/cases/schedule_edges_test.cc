// Guards against: a stable phase that forgets the warm-up, division by zero decay steps, a schedule
// that restarts or advances twice after a resume.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "optim/schedule.h"

namespace overtok {
namespace {

std::vector<double> Scales(const ScheduleConfig& schedule, int64_t steps, int64_t first = 0) {
  std::vector<double> scales;
  for (int64_t t = first; t < steps; ++t) scales.push_back(LrScale(schedule, steps, t));
  return scales;
}

// All expected values are exact in binary.
TEST(ScheduleEdges, WarmupStableDecay) {
  ScheduleConfig schedule;
  schedule.warmup_steps = 4;
  schedule.decay = 0.4;
  EXPECT_EQ(Scales(schedule, 10),
            (std::vector<double>{0, 0.25, 0.5, 0.75, 1, 1, 1, 0.75, 0.5, 0.25}));
}

TEST(ScheduleEdges, FloorIsReachedOnlyAfterTheLastStep) {
  ScheduleConfig schedule;
  schedule.decay = 0.5;
  schedule.min_lr_ratio = 0.5;
  EXPECT_EQ(Scales(schedule, 8), (std::vector<double>{1, 1, 1, 1, 1, 0.875, 0.75, 0.625}));
  EXPECT_EQ(LrScale(schedule, 8, 8), 0.5);
  EXPECT_EQ(LrScale(schedule, 8, 100), 0.5);
}

TEST(ScheduleEdges, NoWarmupNoDecay) {
  ScheduleConfig schedule;
  schedule.decay = 0;
  EXPECT_EQ(Scales(schedule, 4), (std::vector<double>{1, 1, 1, 1}));
}

TEST(ScheduleEdges, DecayOfLessThanOneStepIsNone) {
  ScheduleConfig schedule;
  schedule.decay = 0.2;
  EXPECT_EQ(DecaySteps(schedule, 4), 0);
  EXPECT_EQ(Scales(schedule, 4), (std::vector<double>{1, 1, 1, 1}));
}

TEST(ScheduleEdges, WarmupLongerThanTheRun) {
  for (const auto type : {ScheduleConfig::Type::kLinear, ScheduleConfig::Type::kCosine}) {
    ScheduleConfig schedule;
    schedule.type = type;
    schedule.warmup_steps = 8;
    EXPECT_EQ(Scales(schedule, 4), (std::vector<double>{0, 0.125, 0.25, 0.375}));
    // Steps past the run's end are defined and finite as well.
    for (int64_t t = 4; t < 20; ++t) EXPECT_TRUE(std::isfinite(LrScale(schedule, 4, t)));
  }
}

TEST(ScheduleEdges, WholeRunDecays) {
  ScheduleConfig schedule;
  schedule.decay = 1;
  EXPECT_EQ(Scales(schedule, 4), (std::vector<double>{1, 0.75, 0.5, 0.25}));
}

TEST(ScheduleEdges, ResumedRunHasTheSameRates) {
  ScheduleConfig schedule;
  schedule.type = ScheduleConfig::Type::kCosine;
  schedule.warmup_steps = 3;
  const std::vector<double> straight = Scales(schedule, 10);
  const std::vector<double> resumed = Scales(schedule, 10, 5);
  EXPECT_EQ(std::vector<double>(straight.begin() + 5, straight.end()), resumed);
}

}  // namespace
}  // namespace overtok

#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

namespace overtok {
namespace {

void ExpectNear(double a, double b) {
  // Both sides are a few double operations on numbers of at most 1.
  EXPECT_TRUE(std::abs(a - b) <= 1e-15) << a << " against " << b;
}

TEST(Schedule, LinearOfThe130mRecipe) {
  ScheduleConfig schedule;
  EXPECT_EQ(DecaySteps(schedule, 4959), 3967);  // 3967.2, truncated
  for (const int64_t t : {0, 1, 991, 992}) EXPECT_EQ(LrScale(schedule, 4959, t), 1);
  for (const int64_t t : {993, 2000, 4958}) {
    ExpectNear(LrScale(schedule, 4959, t), 1 - static_cast<double>(t - 992) / 3967);
  }
  ExpectNear(LrScale(schedule, 4959, 4958), 1.0 / 3967);
}

TEST(Schedule, CosineWithWarmup) {
  ScheduleConfig schedule;
  schedule.type = ScheduleConfig::Type::kCosine;
  schedule.warmup_steps = 1000;
  EXPECT_EQ(LrScale(schedule, 11444, 0), 0);
  ExpectNear(LrScale(schedule, 11444, 1), 0.001);
  ExpectNear(LrScale(schedule, 11444, 999), 0.999);
  EXPECT_EQ(LrScale(schedule, 11444, 1000), 1);
  ExpectNear(LrScale(schedule, 11444, 6222), 0.5);  // halfway between 1000 and 11444
  ExpectNear(LrScale(schedule, 11444, 11443), 0.5 * (1 + std::cos(M_PI * 10443 / 10444)));
  EXPECT_EQ(LrScale(schedule, 11444, 11444), 0);
}

TEST(Schedule, CosineEndsAtTheFloor) {
  ScheduleConfig schedule;
  schedule.type = ScheduleConfig::Type::kCosine;
  schedule.min_lr_ratio = 0.1;
  EXPECT_EQ(LrScale(schedule, 100, 0), 1);
  ExpectNear(LrScale(schedule, 100, 50), 0.55);
  ExpectNear(LrScale(schedule, 100, 100), 0.1);
}

}  // namespace
}  // namespace overtok

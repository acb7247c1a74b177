#include "trainer/progress_line.h"

#include <gtest/gtest.h>

#include <cmath>

namespace overtok {
namespace {

TEST(ProgressLineTest, SaysEverything) {
  ProgressFacts facts;
  facts.step = 1200;
  facts.steps = 12000;
  facts.loss = 3.81234;
  facts.gradient_norm = 0.4123;
  facts.lr = 1.2e-3;
  facts.tokens_per_second = 1.05e6;
  facts.step_seconds = 0.0382;
  facts.memory_bytes = int64_t{3} << 29;
  facts.waiting = 0.004;
  facts.epoch = 0.31;
  facts.seconds_left = 11520;
  EXPECT_EQ(FormatProgress(facts),
            "step  1200/12000 (10.0%) loss 3.8123 gnorm 0.412 lr 1.2e-03 tok/s 1.05M ms/step 38.2 "
            "mem 1.50 GiB data 0.4% epoch 0.31 eta 3h12m");
  facts.loss_name = "sampled loss";
  EXPECT_NE(FormatProgress(facts).find(") sampled loss 3.8123 gnorm"), std::string::npos);
}

TEST(ProgressLineTest, SaysWhatIsNotKnownYet) {
  ProgressFacts facts;
  facts.step = 1;
  facts.steps = 10;
  EXPECT_NE(FormatProgress(facts).find("tok/s ? ms/step ? "), std::string::npos);
  EXPECT_NE(FormatProgress(facts).find("eta ?"), std::string::npos);
}

TEST(StepTimerTest, LeavesTheFirstStepOut) {
  StepTimer timer;
  timer.Add(100);
  EXPECT_LT(timer.seconds(), 0);
  timer.Add(1);
  timer.Add(3);
  EXPECT_TRUE(std::abs(timer.seconds() - 2) <= 1e-12);  // exact up to rounding
}

}  // namespace
}  // namespace overtok

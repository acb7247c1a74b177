// Names of losses, and what a model that knows nothing is expected to lose.
#include "trainer/step_metrics.h"

#include <cmath>

#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"

namespace overtok {
namespace {

HeadResult HeadOf(HeadKind kind, int64_t candidates) {
  HeadResult head;
  head.kind = kind;
  head.sampled = candidates > 0;
  head.candidates.candidates = candidates;
  head.candidates.blocks = 4;
  return head;
}

TEST(StepMetricsTest, LossesAreNamedForWhatTheyAre) {
  const Config config = testing::TinyConfig("/none", "run").value().config;
  RunConstants run(config);
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kMain, 0)), "train/loss");
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kMain, 24)), "train/sampled_softmax_loss");
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kSecondToken, 0)), "train/head2/loss");
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kGram2, 9)), "train/gram2/sampled_softmax_loss");
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kGram3, 0)), "train/gram3/loss");
  run.focal = true;
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kMain, 0)), "train/focal_loss");
  EXPECT_EQ(LossTag(run, HeadOf(HeadKind::kSecondToken, 0)), "train/head2/focal_loss");
}

TEST(StepMetricsTest, TheFirstLossIsLnOfTheClassesScored) {
  Config config = testing::TinyConfig("/none", "run", testing::MethodOverrides()).value().config;
  config.model.ngram_head.emplace();
  config.model.ngram_head->rows = 200;
  EXPECT_EQ(LossOfIgnorance(config, HeadOf(HeadKind::kMain, 0)), std::log(64.0));
  EXPECT_EQ(LossOfIgnorance(config, HeadOf(HeadKind::kMain, 24)), std::log(24.0));
  EXPECT_EQ(LossOfIgnorance(config, HeadOf(HeadKind::kGram2, 16)), std::log(16.0));
  EXPECT_EQ(LossOfIgnorance(config, HeadOf(HeadKind::kGram2, 0)), std::log(200.0));
  // Corrected sums estimate the sum over all classes.
  config.loss.sampled_softmax->correction = Correction::kInclusion;
  EXPECT_EQ(LossOfIgnorance(config, HeadOf(HeadKind::kMain, 24)), std::log(64.0));
  config.model.ngram_head->correction = Correction::kInclusion;
  EXPECT_EQ(LossOfIgnorance(config, HeadOf(HeadKind::kGram2, 16)), std::log(200.0));
}

}  // namespace
}  // namespace overtok

// The length of a run, stated in four ways and resolved in two stages.
#include "tests/support/temporary_directory.h"
#include "tests/trainer/config/support.h"
#include "trainer/config/derived.h"

namespace overtok {
namespace {

using ::testing::HasSubstr;
using testing::LoadSmall;

// Batches of 8 windows of 16 tokens: 128 tokens a step.
TEST(Horizon, TokensRoundDownToSteps) {
  auto loaded = LoadSmall({"train.tokens=1_407"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.steps, 10);
  EXPECT_EQ(loaded->config.train.horizon.kind, Horizon::Kind::kTokens);
  EXPECT_EQ(TotalTokens(loaded->config), 1280);
  OT_EXPECT_ERROR(LoadSmall({"train.tokens=127"}), "less than one step");
  OT_EXPECT_ERROR(LoadSmall({"train.steps=1e16"}), "train.steps");
  OT_EXPECT_ERROR(LoadSmall({"train.steps=9e15", "train.batch_sequences=1e6"}), "tokens");
}

TEST(Horizon, TokensPerParameterCountAllParameters) {
  const auto loaded = LoadSmall({"train.tokens_per_parameter=20"});
  OT_ASSERT_OK(loaded);
  // 2 * 100 * 32 embedding and head; 2 * (4 * 32 * 32 + 3 * 32 * 48) matrices;
  // 2 * (4 * 32 + 2 * 8) + 32 gains.
  const int64_t parameters = 6400 + 17408 + 320;
  EXPECT_EQ(CountParameters(loaded->config.model).total(), parameters);
  EXPECT_EQ(loaded->config.train.steps, 20 * parameters / 128);
}

TEST(Horizon, PassesWaitForTheCorpus) {
  auto loaded = LoadSmall({"train.passes_over_data=2.5"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.steps, 0);
  EXPECT_THAT(ResolvedYaml(loaded->config), HasSubstr("passes_over_data: 2.5"));
  OT_ASSERT_OK(ResolveHorizon(1000, &*loaded));
  EXPECT_EQ(loaded->config.train.steps, 312);  // floor(2500 / 8)
  EXPECT_THAT(ResolvedYaml(loaded->config), HasSubstr("  steps: 312\n"));
  EXPECT_EQ(PassesOverData(loaded->config, 1000), 2.496);
  OT_ASSERT_OK(ResolveHorizon(1000, &*loaded));
  EXPECT_EQ(loaded->config.train.steps, 312);
}

TEST(Horizon, PassesOverTheKeptWindows) {
  auto loaded = LoadSmall({"train.passes_over_data=3", "data.unique_tokens=1300"});
  OT_ASSERT_OK(loaded);
  OT_ASSERT_OK(ResolveHorizon(1000, &*loaded));
  EXPECT_EQ(KeptBatches(loaded->config), 10);
  EXPECT_EQ(loaded->config.train.steps, 30);
  EXPECT_EQ(PassesOverData(loaded->config, 1000), 3);
}

TEST(Horizon, PassesKeepAPrefix) {
  auto loaded = LoadSmall({"train.steps=25", "data.passes=2"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(KeptBatches(loaded->config), 12);  // 12.5, half to even
  OT_ASSERT_OK(ResolveHorizon(96, &*loaded));
  OT_EXPECT_ERROR(
      ResolveHorizon(95, &*loaded),
      "command line: data.passes: keeps 12 batches of 8 windows, and the corpus has 95");
  OT_EXPECT_ERROR(LoadSmall({"data.passes=100"}), "leave less than one batch of the 20 steps");
  OT_EXPECT_ERROR(LoadSmall({"data.unique_tokens=100"}), "less than one batch of 128 tokens");
}

TEST(Horizon, CorpusShorterThanAWindow) {
  auto loaded = LoadSmall();
  OT_ASSERT_OK(loaded);
  OT_EXPECT_ERROR(ResolveHorizon(0, &*loaded),
                  "small.yaml:11: data.sequence_length: a window of 16 tokens is longer than");
}

TEST(Horizon, WarmupFitsIntoTheRun) {
  OT_EXPECT_ERROR(LoadSmall({"optimizer.schedule.warmup_steps=21"}),
                  "21 is more than the 20 steps");
  auto loaded = LoadSmall({"optimizer.schedule.warmup_steps=21", "train.passes_over_data=1"});
  OT_ASSERT_OK(loaded);
  OT_EXPECT_ERROR(ResolveHorizon(100, &*loaded), "21 is more than the 12 steps");
}

}  // namespace
}  // namespace overtok

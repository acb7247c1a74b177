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

// What a method adds does not make a run longer.
TEST(Horizon, TokensPerParameterLeaveOutWhatMethodsAdd) {
  const auto loaded = LoadSmall(
      {"train.tokens_per_parameter=20", "model.ngram_embedding={}", "model.second_token_head={}"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.steps, 20 * (6400 + 17408 + 320) / 128);
}

TEST(Freeze, PassesBecomeAStep) {
  auto loaded = LoadSmall(
      {"model.ngram_embedding={}", "optimizer.tables.freeze_after_passes=1.5", "data.passes=2"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 15);  // passes of 10 steps
  EXPECT_EQ(loaded->config.freeze_after_passes, 0);
  loaded = LoadSmall({"model.ngram_embedding={}", "optimizer.tables.freeze_after_passes=2",
                      "data.unique_tokens=1K"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 14);  // 7 batches of 128 tokens
}

TEST(Freeze, WaitsForTheCorpus) {
  auto loaded = LoadSmall({"model.ngram_embedding={}", "optimizer.tables.freeze_after_passes=1"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 0);
  EXPECT_THAT(ResolvedYaml(loaded->config), HasSubstr("freeze_after_passes: 1\n"));
  OT_ASSERT_OK(ResolveHorizon(97, &*loaded));
  // Step 12 still reads window 96, which belongs to the first pass.
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 13);
  OT_ASSERT_OK(ResolveHorizon(97, &*loaded));
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 13);
  EXPECT_THAT(ResolvedYaml(loaded->config),
              HasSubstr("freeze_after_passes: 0\n    freeze_step: 13\n"));
}

TEST(Freeze, NamedMistakes) {
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding={}", "optimizer.tables.freeze_step=20"}),
                  "command line: optimizer.tables.freeze_step: 20 is later than the last step 19");
  OT_ASSERT_OK(LoadSmall({"model.ngram_embedding={}", "optimizer.tables.freeze_step=19"}));
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding={}", "data.passes=2",
                             "optimizer.tables.freeze_after_passes=2"}),
                  "optimizer.tables.freeze_after_passes: 2 passes end at step 20, later than the "
                  "run of 20 steps");
  auto late = LoadSmall({"model.ngram_embedding={}", "optimizer.tables.freeze_after_passes=1"});
  OT_ASSERT_OK(late);
  OT_EXPECT_ERROR(ResolveHorizon(1000, &*late), "1 passes end at step 125, later than the run");
  OT_EXPECT_ERROR(LoadSmall({"model.ngram_embedding={}",
                             "optimizer.tables={freeze_after_passes: 1, freeze_step: 3}"}),
                  "command line: optimizer.tables.freeze_after_passes and command line: "
                  "optimizer.tables.freeze_step: give at most one of");
  // 0 means never, so it does not count as given.
  OT_ASSERT_OK(LoadSmall(
      {"model.ngram_embedding={}", "optimizer.tables={freeze_after_passes: 0, freeze_step: 3}"}));
}

TEST(Freeze, ALaterLayerReplacesTheOtherKey) {
  const std::string text = std::string(testing::kSmallConfig) + "  seed: 1\n";
  const size_t at = text.find("data:");
  const std::string frozen =
      "loss: {z_loss: 0}\n" + text.substr(0, at) + "  tables: {freeze_step: 3}\n" + text.substr(at);
  auto loaded = LoadConfigText(
      frozen, "f.yaml",
      {"model.ngram_embedding={}", "data.passes=2", "optimizer.tables.freeze_after_passes=1"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 10);
  loaded = LoadConfigText(frozen, "f.yaml",
                          {"model.ngram_embedding={}", "optimizer.tables.freeze_after_passes=0"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.optimizer.tables.freeze_step, 3);
}

TEST(Warnings, PassBordersNearStageChanges) {
  const auto warn = [](const char* until, const char* tokens) {
    auto loaded = LoadSmall(
        {"train.steps=1000",
         absl::StrCat("loss.sampled_softmax={stages: [{until: ", until, ", candidates: 40}]}"),
         absl::StrCat("data.unique_tokens=", tokens)});
    return loaded.ok() ? loaded->warnings.size() : 99;
  };
  // 51,200 tokens are 400 batches: passes begin at steps 400 and 800; 3 % are 30 steps.
  EXPECT_EQ(warn("0.43", "51200"), 1u);
  EXPECT_EQ(warn("0.37", "51200"), 1u);
  EXPECT_EQ(warn("0.431", "51200"), 0u);
  EXPECT_EQ(warn("0.369", "51200"), 0u);
  EXPECT_EQ(warn("0.825", "51200"), 1u);
  EXPECT_EQ(warn("0.6", "51200"), 0u);
  EXPECT_EQ(warn("0.98", "128000"), 0u);  // a single pass has no border
}

}  // namespace
}  // namespace overtok

// Inclusion probabilities: counts on a corpus that can be counted by hand, the formula, and the
// adjusted evaluation against log-probabilities that were read out class by class.
#include "trainer/inclusion.h"

#include <cmath>
#include <set>

#include "core/comm/mesh.h"
#include "data/loader.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/evaluator.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

using testing::kTinyVocabulary;
using testing::kTinyWindow;
using testing::MakeTinyCorpus;
using testing::MethodOverrides;
using testing::TemporaryDirectory;
using testing::TinyConfig;
using testing::TinyIdentity;

TEST(InclusionTest, CountsTheLabelsOfBlocks) {
  const TemporaryDirectory directory;
  OT_ASSERT_OK(MakeTinyCorpus(directory.path()));
  LoadedConfig loaded = TinyConfig(directory.path(), "run", MethodOverrides()).value();
  const absl::StatusOr<TrainingData> data = OpenTrainingData(&loaded);
  OT_ASSERT_OK(data);
  const absl::StatusOr<LabelSample> sample =
      SampleLabels(loaded.config, *data->corpus, data->order);
  OT_ASSERT_OK(sample);
  EXPECT_EQ(sample->blocks, 30);  // ten steps of three blocks: all of them
  std::vector<int64_t> count(kTinyVocabulary, 0);
  int64_t sum = 0, most = 0;
  Batch batch;
  for (int64_t step = 0; step < 10; ++step) {
    OT_ASSERT_OK(FillBatch(*data->corpus, data->order, data->loader, step, &batch));
    for (int64_t row = 0; row < 3; ++row) {
      const auto begin = batch.tokens.begin() + row * kTinyWindow;
      const std::set<uint32_t> ids(begin, begin + kTinyWindow);
      for (const uint32_t id : ids) ++count[id];
      sum += static_cast<int64_t>(ids.size());
      most = std::max(most, static_cast<int64_t>(ids.size()));
    }
  }
  EXPECT_EQ(sample->most_distinct, most);
  EXPECT_EQ(sample->mean_distinct, static_cast<double>(sum) / 30);
  for (size_t c = 0; c < count.size(); ++c) {
    EXPECT_EQ(sample->share[c], static_cast<double>(count[c]) / 30) << c;
  }
}

TEST(InclusionTest, TheFormulaAndItsEnds) {
  LabelSample sample;
  sample.mean_distinct = 10;
  sample.share = std::vector<double>(100, 0.0);
  sample.share[3] = 1;
  sample.share[4] = 0.25;
  const std::vector<float> log_pi = LogInclusion(sample, 40);
  const double drawn = 30.0 / 90.0;
  // f32 of a double: relative 6e-8.
  EXPECT_EQ(log_pi[3], 0.0F);
  EXPECT_TRUE(std::abs(log_pi[4] - std::log(0.25 + 0.75 * drawn)) <= 1e-7);
  EXPECT_TRUE(std::abs(log_pi[5] - std::log(drawn)) <= 1e-7);
  for (const int64_t candidates : {10, 5, 100, 200}) {
    for (const float value : LogInclusion(sample, candidates)) EXPECT_EQ(value, 0.0F);
  }
}

TEST(InclusionTest, WarnsOfStagesThatCannotHoldTheLabels) {
  Config config;
  config.loss.sampled_softmax.emplace();
  config.loss.sampled_softmax->stages = {{0.2, 90}, {0.5, 110}, {0.8, 120}};
  LabelSample sample;
  sample.blocks = 64;
  sample.mean_distinct = 100;
  sample.most_distinct = 120;
  const std::vector<std::string> warnings = CandidateWarnings(config, sample);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("stages[0]: 90 candidates"));
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("100 distinct labels on average and up to 120"));
  EXPECT_THAT(warnings[0], ::testing::HasSubstr("most blocks"));
  EXPECT_THAT(warnings[1], ::testing::HasSubstr("stages[1]"));
  EXPECT_THAT(warnings[1], ::testing::HasSubstr("some blocks"));
}

// 64 windows that differ in their last id alone. The sums of their losses differ in that position's
// -log p(id) alone, and the probabilities sum to one: that gives log p of every class, and so what
// the adjusted loss must be.
TEST(InclusionTest, AdjustedEvaluationEqualsADirectComputation) {
  const TemporaryDirectory directory;
  std::vector<std::string> overrides = MethodOverrides();
  overrides.push_back("eval.inclusion_adjusted=true");
  const Config config = TinyConfig(directory.path(), "run", overrides).value().config;
  EvaluationCollection collection;
  collection.prefix = "eval/all";
  collection.identity = TinyIdentity();
  for (uint32_t last = 0; last < kTinyVocabulary; ++last) {
    EvaluationSubset subset;
    subset.data.name = absl::StrCat(last);
    for (uint32_t t = 0; t < kTinyWindow; ++t) subset.data.ids.push_back((7 * t + 3) % 60);
    subset.data.ids.back() = last;
    subset.windows = 1;
    collection.subsets.push_back(std::move(subset));
  }
  EvaluationData data;
  data.Append(std::move(collection));
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  Evaluator evaluator(config, train.model(), &train.parameters(), &mesh, &memory);
  train.Commit();
  train.Initialize();
  EvaluationMoment moment;
  moment.model.tables = {train.optimizer().tables().rule(), train.optimizer().tables().At(0)};
  for (int c = 0; c < kTinyVocabulary; ++c) {
    moment.log_inclusion.push_back(-0.07F * static_cast<float>(c % 40));
  }
  const absl::StatusOr<EvaluationScores> scores =
      evaluator.Run(train.context(), data, moment, [] { return false; });
  OT_ASSERT_OK(scores);
  ASSERT_EQ(scores->adjusted.size(), 1u);
  EXPECT_EQ(scores->adjusted[0].prefix, "eval/all/inclusion_adjusted");
  const auto last_losses = [](const CollectionScore& score) {
    double total = 0;
    for (const SubsetScore& subset : score.subsets) total += std::exp(-subset.loss_sum);
    std::vector<double> losses;
    for (const SubsetScore& subset : score.subsets) {
      losses.push_back(subset.loss_sum + std::log(total));
    }
    return losses;
  };
  const std::vector<double> plain = last_losses(scores->collections[0]);
  const std::vector<double> adjusted = last_losses(scores->adjusted[0]);
  double normaliser = 0;
  for (size_t c = 0; c < plain.size(); ++c) {
    normaliser += std::exp(-plain[c] + moment.log_inclusion[c]);
  }
  for (size_t c = 0; c < plain.size(); ++c) {
    const double expected = plain[c] - moment.log_inclusion[c] + std::log(normaliser);
    // Losses of about 4 in f32, fifteen of them in a sum.
    EXPECT_TRUE(std::abs(adjusted[c] - expected) <= 2e-5) << c;
  }
  EXPECT_TRUE(std::abs(adjusted[1] - plain[1]) > 0.01);
}

}  // namespace
}  // namespace overtok

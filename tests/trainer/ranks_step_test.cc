// One training step under all layouts of up to four ranks, from the same initial values: losses,
// gradients and the values after the step are the same, whatever the method.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/trainer/ranks_run.h"

namespace overtok {
namespace {

using testing::Differing;
using testing::LargestDistance;
using testing::Ot2;
using testing::OtH;
using testing::RanksConfig;
using testing::RanksResult;
using testing::RanksRun;
using testing::Sampled;
using testing::TrainOnRanks;

// Tensor ranks add up f32 products in another order: some ten roundings of 6e-8 in sums of
// cancelling terms. A missing or doubled part would be of the order of 1.
constexpr double kTolerance = 1e-5;

struct Mode {
  std::string name;
  std::vector<std::string> overrides;
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

std::vector<std::string> With(std::vector<std::string> overrides, const std::string& one) {
  overrides.push_back(one);
  return overrides;
}

void ExpectSameStep(const RanksResult& found, const RanksResult& expected) {
  std::string worst;
  EXPECT_EQ(found.error, "");
  EXPECT_EQ(found.results_that_differ, 0);
  EXPECT_EQ(found.copies_that_differ, 0);
  // The same function of (seed, name, element): no rounding.
  EXPECT_EQ(Differing(found.initial, expected.initial), "");
  for (const auto& [name, tensor] : found.values) EXPECT_TRUE(tensor.EachOnce()) << name;
  double distance = LargestDistance(found.gradients, expected.gradients, &worst);
  EXPECT_TRUE(distance <= kTolerance) << "gradient of " << worst << ": " << distance;
  distance = LargestDistance(found.values, expected.values, &worst);
  EXPECT_TRUE(distance <= kTolerance) << worst << " after the step: " << distance;
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    const StepResult &a = found.steps[i], &b = expected.steps[i];
    EXPECT_TRUE(std::abs(a.loss / b.loss - 1) <= 1e-6) << a.loss << " against " << b.loss;
    EXPECT_TRUE(std::abs(a.total_norm / b.total_norm - 1) <= kTolerance);
    EXPECT_EQ(a.weight_sum, b.weight_sum);
    ASSERT_EQ(a.heads.size(), b.heads.size());
    for (size_t h = 0; h < a.heads.size(); ++h) {
      EXPECT_TRUE(std::abs(a.heads[h].loss / b.heads[h].loss - 1) <= 1e-6) << h;
      EXPECT_EQ(a.heads[h].weight_sum, b.heads[h].weight_sum);
      EXPECT_EQ(a.heads[h].sampled, b.heads[h].sampled);
      EXPECT_EQ(a.heads[h].candidates.overflows, b.heads[h].candidates.overflows);
      EXPECT_EQ(a.heads[h].candidates.present_mean, b.heads[h].candidates.present_mean);
    }
    ASSERT_EQ(a.tables.size(), b.tables.size());
    for (size_t t = 0; t < a.tables.size(); ++t) {
      EXPECT_EQ(a.tables[t].rows_touched, b.tables[t].rows_touched);
    }
  }
}

class OneStep : public ::testing::TestWithParam<Mode> {};

TEST_P(OneStep, IsTheSameUnderAllLayouts) {
  const Config config = RanksConfig(GetParam().overrides);
  const RanksResult alone = TrainOnRanks(config, RanksRun{});
  ASSERT_EQ(alone.error, "");
  EXPECT_GT(alone.steps[0].total_norm, 0);
  EXPECT_NE(Differing(alone.initial, alone.values), "");
  for (const auto& [data, tensor] :
       std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {2, 2}, {4, 1}, {1, 4}}) {
    SCOPED_TRACE(std::to_string(data) + " x " + std::to_string(tensor));
    const RanksResult found = TrainOnRanks(config, {.data = data, .tensor = tensor});
    ExpectSameStep(found, alone);
    // Data ranks change no bit at all.
    if (tensor == 1) {
      EXPECT_EQ(Differing(found.gradients, alone.gradients), "");
      EXPECT_EQ(Differing(found.values, alone.values), "");
      EXPECT_EQ(Differing(found.state, alone.state), "");
      EXPECT_EQ(found.steps[0].loss, alone.steps[0].loss);
      EXPECT_EQ(found.steps[0].norms, alone.steps[0].norms);
    }
  }
}

// Blocks of two and four windows span ranks that hold one window each; 9 candidates are fewer than
// the labels of most blocks.
INSTANTIATE_TEST_SUITE_P(
    , OneStep,
    ::testing::Values(Mode{"Baseline", {}}, Mode{"Sampled", {Sampled(50, 2)}},
                      Mode{"BlockOverAllRanks", {Sampled(50, 4)}},
                      Mode{"Overflow", {Sampled(9, 2)}},
                      Mode{"OtHSampled", With(OtH(), Sampled(60, 2))}, Mode{"Ot2", Ot2()},
                      Mode{"Ot2Sampled", With(Ot2(), Sampled(60, 4))},
                      Mode{"Tied", {"model.tie_word_embeddings=true"}},
                      Mode{"TiedSampled", {"model.tie_word_embeddings=true", Sampled(50, 2)}},
                      Mode{"OneKeyValueHead", {"model.num_key_value_heads=1"}},
                      Mode{"TwoKeyValueHeads", {"model.num_key_value_heads=2"}},
                      Mode{"WithoutHybridNorm", {"model.hybrid_norm=false"}},
                      Mode{"Focal", {"loss.focal_gamma=0.5", "model.second_token_head={}"}},
                      Mode{"ZLoss", {"loss.z_loss=0.01"}},
                      Mode{"ContiguousVocabulary",
                           {"parallel={tensor: 2, vocabulary_map: contiguous}", Sampled(50, 2)}},
                      Mode{"Recompute", {"train.recompute=block"}}),
    [](const ::testing::TestParamInfo<Mode>& mode) { return mode.param.name; });

}  // namespace
}  // namespace overtok

// Data-parallel degree x accumulation changes no bit: weights, moments, tables and losses after 20
// steps are those of one rank that runs all micro-batches.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/trainer/ranks_run.h"

namespace overtok {
namespace {

using testing::Differing;
using testing::LargestDistance;
using testing::OtH;
using testing::RanksConfig;
using testing::RanksResult;
using testing::Sampled;
using testing::TrainOnRanks;

constexpr int64_t kSteps = 20;

struct Mode {
  std::string name;
  std::vector<std::string> overrides;
  int tensor = 1;
};
void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

// A clip that bites, tables that are frozen half-way, and rows that drop out.
std::vector<std::string> Everything() {
  std::vector<std::string> overrides = OtH();
  for (const char* one : {"optimizer.max_grad_norm=0.02", "optimizer.tables.freeze_step=10",
                          "model.ngram_embedding.row_dropout=0.2", "loss.z_loss=0.001"}) {
    overrides.emplace_back(one);
  }
  overrides.push_back(
      "loss.sampled_softmax={correction: inclusion, stages: [{until: 0.3, candidates: 60}, {until: "
      "0.7, candidates: "
      "80}], block_sequences: 2}");
  return overrides;
}

std::vector<std::string> InBf16(std::vector<std::string> overrides) {
  overrides.emplace_back("train.precision=bf16");
  return overrides;
}

void ExpectSameBits(const RanksResult& found, const RanksResult& expected) {
  ASSERT_EQ(found.error, "");
  EXPECT_EQ(found.results_that_differ, 0);
  EXPECT_EQ(found.copies_that_differ, 0);
  EXPECT_EQ(Differing(found.initial, expected.initial), "");
  EXPECT_EQ(Differing(found.gradients, expected.gradients), "");
  EXPECT_EQ(Differing(found.values, expected.values), "");
  EXPECT_EQ(Differing(found.state, expected.state), "");
  for (const auto& [name, tensor] : found.state) EXPECT_TRUE(tensor.EachOnce()) << name;
  ASSERT_EQ(found.steps.size(), expected.steps.size());
  for (size_t i = 0; i < found.steps.size(); ++i) {
    EXPECT_EQ(found.steps[i].loss, expected.steps[i].loss) << "step " << i;
    EXPECT_EQ(found.steps[i].norms, expected.steps[i].norms) << "step " << i;
    EXPECT_EQ(found.steps[i].total_norm, expected.steps[i].total_norm) << "step " << i;
  }
}

class TwentySteps : public ::testing::TestWithParam<Mode> {};

TEST_P(TwentySteps, DataRanksChangeNoBit) {
  const Config config = RanksConfig(GetParam().overrides);
  const int tensor = GetParam().tensor;
  const RanksResult expected = TrainOnRanks(config, {.tensor = tensor, .steps = kSteps});
  ASSERT_EQ(expected.error, "");
  for (const StepResult& step : expected.steps) EXPECT_TRUE(std::isfinite(step.loss));
  for (const int data : {2, 4}) {
    SCOPED_TRACE(data);
    ExpectSameBits(TrainOnRanks(config, {.data = data, .tensor = tensor, .steps = kSteps}),
                   expected);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , TwentySteps,
    ::testing::Values(Mode{"Baseline", {}}, Mode{"BaselineTensor2", {}, 2},
                      Mode{"OtH", Everything()}, Mode{"OtHTensor2", Everything(), 2},
                      Mode{"BaselineBf16", InBf16({})}, Mode{"OtHBf16", InBf16(Everything())},
                      Mode{"OtHBf16Tensor2", InBf16(Everything()), 2},
                      Mode{"Tied", {"model.tie_word_embeddings=true", Sampled(50, 2)}},
                      Mode{"Ot2", testing::Ot2()}),
    [](const ::testing::TestParamInfo<Mode>& mode) { return mode.param.name; });

// A rank's clipped, frozen step is what Everything() is for.
TEST(TwentyStepsOfEverything, ClipAndFreeze) {
  const RanksResult run = TrainOnRanks(RanksConfig(Everything()), {.data = 2, .steps = kSteps});
  ASSERT_EQ(run.error, "");
  EXPECT_FALSE(run.steps[9].tables_frozen);
  EXPECT_TRUE(run.steps[10].tables_frozen);
  for (const StepResult& step : run.steps) {
    for (const double norm : step.norms) EXPECT_GT(norm, 0.02);
  }
}

// Six micro-batches: each rank has a power of two of them, or is alone.
TEST(SixMicroBatches, OneThreeAndSixRanksAreEqual) {
  std::vector<std::string> overrides = OtH();
  overrides.insert(overrides.end(), {"train.batch_sequences=6", Sampled(60, 3)});
  const Config config = RanksConfig(overrides);
  const RanksResult expected = TrainOnRanks(config, {.steps = 6});
  ASSERT_EQ(expected.error, "");
  for (const int data : {3, 6}) {
    SCOPED_TRACE(data);
    ExpectSameBits(TrainOnRanks(config, {.data = data, .steps = 6}), expected);
  }
}

// The plain sum agrees to rounding; its layouts need not be equal to the bit.
TEST(PlainSum, TrainsAsTheTree) {
  const Config tree = RanksConfig(OtH());
  std::vector<std::string> overrides = OtH();
  overrides.emplace_back("parallel.gradient_sum=plain");
  const Config plain = RanksConfig(overrides);
  const RanksResult expected = TrainOnRanks(tree, {.steps = 1});
  ASSERT_EQ(expected.error, "");
  for (const int data : {1, 2, 4}) {
    const RanksResult found = TrainOnRanks(plain, {.data = data, .steps = 1});
    ASSERT_EQ(found.error, "");
    EXPECT_EQ(found.results_that_differ, 0);
    EXPECT_EQ(found.copies_that_differ, 0);
    std::string worst;
    // Sums of four terms in another order, and what one step makes of it.
    EXPECT_TRUE(LargestDistance(found.gradients, expected.gradients, &worst) <= 1e-5) << worst;
    EXPECT_TRUE(LargestDistance(found.values, expected.values, &worst) <= 1e-5) << worst;
    const RanksResult run = TrainOnRanks(plain, {.data = data, .steps = kSteps});
    ASSERT_EQ(run.error, "");
    EXPECT_EQ(run.copies_that_differ, 0);
    EXPECT_TRUE(std::isfinite(run.steps.back().loss));
  }
}

}  // namespace
}  // namespace overtok

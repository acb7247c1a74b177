// The tiled head against a dense one in double: losses, dh, dW, over several tiles whose border
// does not divide the tokens; weights of zero; z-loss, bias, focal loss; accumulation; confident
// logits; fewer classes than the tile was made for. Ids above 65,535 are targets.
#include "losses/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/memory.h"
#include "tests/losses/head_reference.h"

namespace overtok {
namespace {

using testing::ComputeDense;
using testing::DenseHead;
using testing::Distance;
using testing::HeadOptions;
using testing::HeadOutcome;
using testing::HeadProblem;

HeadOutcome RunTiled(HeadProblem& p, const HeadOptions& options, bool accumulate, bool gradients) {
  return testing::RunTiled(p, options, accumulate, gradients, p.classes);
}

void Compare(HeadProblem p, const HeadOptions& options, int64_t most) {
  const DenseHead dense = ComputeDense(p, options);
  const HeadOutcome tiled = testing::RunTiled(p, options, false, true, most);
  // Sums of at most 5 products of fp32 numbers, then an fp32 log-sum-exp: relative errors of a few
  // 1e-7.
  EXPECT_TRUE(std::abs(tiled.sums.loss / dense.loss - 1) <= 2e-6);
  EXPECT_TRUE(std::abs(tiled.sums.lse_squared / dense.lse_squared - 1) <= 2e-6);
  EXPECT_EQ(tiled.sums.weight, dense.weight);
  EXPECT_TRUE(Distance(tiled.token_loss, dense.token_loss) <= 1e-6);
  EXPECT_TRUE(Distance(tiled.dh, dense.dh) <= 5e-6) << Distance(tiled.dh, dense.dh);
  EXPECT_TRUE(Distance(tiled.dw, dense.dw) <= 5e-6) << Distance(tiled.dw, dense.dw);
  for (int64_t t = 0; t < p.tokens; ++t) {
    if (p.weight[static_cast<size_t>(t)] != 0) continue;
    for (int64_t i = 0; i < p.hidden; ++i)
      ASSERT_EQ(tiled.dh[static_cast<size_t>(t * p.hidden + i)], 0);
  }
}

void Compare(const HeadProblem& p, const HeadOptions& options) { Compare(p, options, p.classes); }

std::vector<float> RandomBias(int64_t classes) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> bias(static_cast<size_t>(classes));
  for (float& x : bias) x = normal(generator);
  return bias;
}

TEST(LinearCrossEntropy, SeveralTilesAgreeWithDense) {
  HeadProblem p(150, 3, 70'001, 1.0F);
  EXPECT_LT(RunTiled(p, {}, false, false).tile_rows, 150);  // else this is no test of tiles
  Compare(p, {});
}
TEST(LinearCrossEntropy, OneTileAgreesWithDense) { Compare(HeadProblem(37, 5, 101, 1.0F), {}); }
TEST(LinearCrossEntropy, ZLossAgreesWithDense) {
  Compare(HeadProblem(37, 5, 101, 1.0F), {.z_loss = 1e-2});
}
TEST(LinearCrossEntropy, ConfidentLogitsAgreeWithDense) {
  Compare(HeadProblem(37, 5, 101, 40.0F), {});
}
TEST(LinearCrossEntropy, BiasAgreesWithDense) {
  Compare(HeadProblem(37, 5, 101, 1.0F), {.bias = RandomBias(101)});
  Compare(HeadProblem(150, 3, 4'001, 1.0F), {.bias = RandomBias(4'001)});
}
TEST(LinearCrossEntropy, FocalLossAgreesWithDense) {
  for (const double gamma : {0.5, 1.0, 2.0}) {
    Compare(HeadProblem(37, 5, 101, 1.0F), {.focal_gamma = gamma});
    Compare(HeadProblem(37, 5, 101, 1.0F),
            {.z_loss = 1e-2, .focal_gamma = gamma, .bias = RandomBias(101)});
  }
}

TEST(LinearCrossEntropy, FewerClassesUseTheSameTileForMoreRows) {
  Memory memory(Memory::Mode::kDry);
  const LinearCrossEntropy head(&memory, 10'000, 8, 4'096, DType::kBF16, /*group=*/nullptr,
                                1 << 21);
  EXPECT_EQ(head.tile_rows(4'096), 128);
  EXPECT_EQ(head.tile_rows(1'024), 512);
  EXPECT_EQ(head.tile_rows(1'000), 512);  // 524 hold
  EXPECT_EQ(head.tile_rows(7), 10'000);
  // f32 and bf16 logits of one tile, two fp32 numbers a token, three sums.
  EXPECT_EQ(memory.total(), 128 * 4'096 * (4 + 2) + 10'000 * 8 + 24);
  // Three tiles of 64 rows for 70,001 classes; one of 150 for 9 classes.
  for (const int64_t classes : {9, 777, 5'000})
    Compare(HeadProblem(150, 3, classes, 1.0F), {}, 70'001);
}

TEST(LinearCrossEntropy, AShortMicroBatchTakesNoMoreThanItNeeds) {
  for (const int64_t tokens : {1, 37, 100}) {
    Memory memory(Memory::Mode::kDry);
    const LinearCrossEntropy head(&memory, tokens, 8, 50, DType::kF32);
    EXPECT_EQ(memory.bytes(Purpose::kHead), tokens * 50 * 4 + tokens * 8 + 24);
    for (const int64_t classes : {1, 3, 49, 50}) EXPECT_EQ(head.tile_rows(classes), tokens);
  }
}

TEST(LinearCrossEntropy, AccumulationAddsToWhatIsThere) {
  HeadProblem p(37, 5, 101, 1.0F);
  const HeadOutcome fresh = RunTiled(p, {}, false, true);
  const HeadOutcome added = RunTiled(p, {}, true, true);
  for (size_t i = 0; i < fresh.dw.size(); ++i) {
    ASSERT_TRUE(std::abs(added.dw[i] - (fresh.dw[i] + 0.5F)) <= 1e-7F) << i;
  }
}

TEST(LinearCrossEntropy, EvaluationGivesTheSameLosses) {
  HeadProblem p(150, 3, 70'001, 1.0F);
  const HeadOutcome trained = RunTiled(p, {}, false, true);
  const HeadOutcome evaluated = RunTiled(p, {}, false, false);
  EXPECT_EQ(trained.token_loss, evaluated.token_loss);
  EXPECT_EQ(trained.sums.loss, evaluated.sums.loss);
}

TEST(LinearCrossEntropy, AllTargetsIgnored) {
  HeadProblem p(37, 5, 101, 1.0F);
  std::fill(p.weight.begin(), p.weight.end(), 0.0F);
  std::fill(p.gradient_weight.begin(), p.gradient_weight.end(), 0.0F);
  for (const double gamma : {0.0, 1.0}) {
    const HeadOutcome out = RunTiled(p, {.z_loss = 1e-2, .focal_gamma = gamma}, false, true);
    EXPECT_EQ(out.sums.loss, 0);
    EXPECT_EQ(out.sums.weight, 0);
    for (const float x : out.dh) ASSERT_EQ(x, 0);
    for (const float x : out.dw) ASSERT_EQ(x, 0);
  }
}

}  // namespace
}  // namespace overtok

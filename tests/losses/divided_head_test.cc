// The tiled head with its classes divided among ranks against one rank and against double: loss,
// the hidden states' gradient on every rank after summing, every rank's part of the weights'
// gradient; blocks of 64 and contiguous ranges, ranks without classes, several tiles, ignored
// targets, bf16; bytes sent and memory.
#include "tests/losses/divided_head.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/memory.h"
#include "losses/linear_cross_entropy.h"

namespace overtok {
namespace {

using testing::ComputeDense;
using testing::DenseHead;
using testing::Distance;
using testing::DividedOutcome;
using testing::Division;
using testing::HeadOptions;
using testing::HeadProblem;
using testing::RankOutcome;
using testing::RunDivided;

std::vector<double> Doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

std::vector<float> RandomBias(int64_t classes) {
  std::mt19937 generator(3);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> bias(static_cast<size_t>(classes));
  for (float& x : bias) x = normal(generator);
  return bias;
}

// Every rank has the same sums and token losses, to the bit, and sent what is predicted; parts
// without classes have a gradient of exactly zero. Then rank by rank against one rank.
void CompareWithOne(const HeadProblem& p, const HeadOptions& options, Division how) {
  const DividedOutcome divided = RunDivided(p, options, how);
  how.ranks = 1;
  const DividedOutcome one = RunDivided(p, options, how);
  const RankOutcome &whole = one.ranks[0], &first = divided.ranks[0];
  const auto ranks = static_cast<int64_t>(divided.ranks.size());
  EXPECT_EQ(whole.bytes_sent, 0);
  for (const RankOutcome& rank : divided.ranks) {
    EXPECT_EQ(rank.sums.loss, first.sums.loss);
    EXPECT_EQ(rank.sums.lse_squared, first.sums.lse_squared);
    EXPECT_EQ(rank.sums.weight, first.sums.weight);
    EXPECT_EQ(rank.token_loss, first.token_loss);
    EXPECT_EQ(rank.dh, first.dh);
    EXPECT_EQ(rank.bytes_sent, LossBytesSent(p.tokens, ranks));
    if (rank.classes > 0) continue;
    for (const float x : rank.own_dh) ASSERT_EQ(x, 0);
  }
  // The same products of fp32 numbers (to a few units: 1e-7) and exponentials in another order of
  // sums; a loss is a difference of numbers some times its size. Sums of partial dh: one rounding
  // more a rank.
  EXPECT_TRUE(std::abs(first.sums.loss / whole.sums.loss - 1) <= 1e-6);
  EXPECT_TRUE(std::abs(first.sums.lse_squared / whole.sums.lse_squared - 1) <= 1e-6);
  EXPECT_EQ(first.sums.weight, whole.sums.weight);
  EXPECT_TRUE(Distance(first.dh, Doubles(whole.dh)) <= 1e-6)
      << Distance(first.dh, Doubles(whole.dh));
  EXPECT_TRUE(Distance(divided.dw, Doubles(one.dw)) <= 1e-6)
      << Distance(divided.dw, Doubles(one.dw));

  // As the undivided head's own test.
  const DenseHead dense = ComputeDense(p, options);
  EXPECT_TRUE(std::abs(first.sums.loss / dense.loss - 1) <= 2e-6);
  EXPECT_TRUE(Distance(first.token_loss, dense.token_loss) <= 1e-6);
  EXPECT_TRUE(Distance(first.dh, dense.dh) <= 5e-6) << Distance(first.dh, dense.dh);
  EXPECT_TRUE(Distance(divided.dw, dense.dw) <= 5e-6) << Distance(divided.dw, dense.dw);
  for (int64_t t = 0; t < p.tokens; ++t) {
    if (p.weight[static_cast<size_t>(t)] != 0) continue;
    for (int64_t i = 0; i < p.hidden; ++i) {
      ASSERT_EQ(first.dh[static_cast<size_t>(t * p.hidden + i)], 0);
    }
  }
}

// 101 classes in blocks of 64: 64 and 37, and nothing for a third and a fourth rank. 150 tokens:
// tiles of 64, 64 and 22 rows.
TEST(DividedHead, AgreesWithOneRank) {
  HeadProblem p(150, 5, 101, 1.0F);
  for (const int ranks : {2, 3, 4}) {
    for (const Split split : {Split::kBlocks, Split::kRows, Split::kScattered}) {
      const Division how = {.ranks = ranks, .split = split};
      CompareWithOne(p, {}, how);
      CompareWithOne(p, {.z_loss = 1e-2}, how);
      CompareWithOne(p, {.bias = RandomBias(101)}, how);
      CompareWithOne(p, {.z_loss = 1e-2, .focal_gamma = 2, .bias = RandomBias(101)}, how);
      EXPECT_EQ(RunDivided(p, {}, how).ranks[0].tile_rows, 64);
    }
  }
}

TEST(DividedHead, TheTargetAndTheLargestLogitLieOnDifferentRanks) {
  HeadProblem p(150, 5, 101, 8.0F);
  const Sharding sharding = {Split::kBlocks, 2, 0};
  int64_t apart = 0;
  for (size_t t = 0; t < 150; ++t) {
    int64_t top = 0;
    double most = -INFINITY;
    for (int64_t c = 0; c < 101; ++c) {
      double z = 0;
      for (size_t i = 0; i < 5; ++i) z += p.h[t * 5 + i] * p.w[static_cast<size_t>(c) * 5 + i];
      if (z > most) top = c;
      most = std::max(most, z);
    }
    apart += PartOf(sharding, 101, top) != PartOf(sharding, 101, p.targets[t]) ? 1 : 0;
  }
  EXPECT_GE(apart, 40);  // else this is no test of them
  CompareWithOne(p, {}, {.ranks = 2});
}

// Targets on both sides of every border, and the first and the last class.
TEST(DividedHead, TargetsAtTheBordersOfParts) {
  for (const Split split : {Split::kBlocks, Split::kRows}) {
    HeadProblem p(70, 3, 200, 1.0F);
    for (size_t t = 0; t < 70; ++t) {
      const uint32_t at[] = {0, 63, 64, 127, 128, 191, 192, 199, 49, 50, 99, 100, 149, 150};
      p.targets[t] = at[t % 14];
    }
    CompareWithOne(p, {}, {.ranks = 4, .split = split});
  }
}

// cases.md 1: the loss alone would agree without the sum of dh over ranks.
TEST(DividedHead, HiddenGradientIsSummedOverRanks) {
  HeadProblem p(2, 3, 4, 1.0F);
  CompareWithOne(p, {}, {.ranks = 2, .split = Split::kRows});
  const DividedOutcome divided = RunDivided(p, {}, {.ranks = 2, .split = Split::kRows});
  const DenseHead dense = ComputeDense(p, {});
  for (const RankOutcome& rank : divided.ranks) {
    EXPECT_TRUE(Distance(rank.own_dh, dense.dh) > 0.1);
    EXPECT_TRUE(Distance(rank.dh, dense.dh) <= 1e-6);
  }
}

// cases.md 2: every tile's gradient counts once. Five updates, so that an error would grow.
TEST(DividedHead, FiveUpdatesOverSeveralTilesEqualOneRanks) {
  HeadProblem divided(150, 4, 101, 1.0F), one(150, 4, 101, 1.0F);
  const auto update = [](HeadProblem* p, int ranks, int64_t tile_bytes) {
    const DividedOutcome out = RunDivided(*p, {}, {.ranks = ranks, .tile_bytes = tile_bytes});
    for (size_t i = 0; i < p->h.size(); ++i) p->h[i] -= 30 * out.ranks[0].dh[i];
    for (size_t i = 0; i < p->w.size(); ++i) p->w[i] -= 3 * out.dw[i];
    return out.ranks[0].sums.loss;
  };
  double first = 0, last = 0;
  for (int step = 0; step < 5; ++step) {
    last = update(&divided, 2, 4);
    if (step == 0) first = last;
    const double whole = update(&one, 1, 1 << 20);  // in one tile
    EXPECT_TRUE(std::abs(last / whole - 1) <= 5e-6) << step;
  }
  EXPECT_LT(last, 0.9 * first);
  // fp32 differences of 1e-7 an update, hardly amplified.
  EXPECT_TRUE(Distance(divided.h, Doubles(one.h)) <= 5e-6);
  EXPECT_TRUE(Distance(divided.w, Doubles(one.w)) <= 5e-6);
}

// cases.md 8 and 11: parts of any size, whatever a kernel's own block.
TEST(DividedHead, PartsOfAnySize) {
  for (const int64_t classes : {6, 8, 10, 18, 31, 33, 64, 66}) {
    CompareWithOne(HeadProblem(70, 3, classes, 1.0F), {}, {.ranks = 2, .split = Split::kRows});
  }
  for (const int64_t classes : {2, 5}) {  // fewer than ranks, and one each and one over
    CompareWithOne(HeadProblem(37, 3, classes, 1.0F), {.z_loss = 0.1},
                   {.ranks = 4, .split = Split::kRows});
  }
  // A single class is certain.
  const HeadProblem certain(37, 3, 1, 1.0F);
  const DividedOutcome out = RunDivided(certain, {}, {.ranks = 4, .split = Split::kRows});
  for (const RankOutcome& rank : out.ranks) {
    EXPECT_EQ(rank.sums.loss, 0);
    for (const float x : rank.own_dh) ASSERT_EQ(x, 0);
  }
  for (const float x : out.dw) ASSERT_EQ(x, 0);
}

// Five classes on two ranks: masses 1, 4, 6, 4, 1 over 16.
TEST(DividedHead, ABinomialOverTwoRanks) {
  HeadProblem p(1, 1, 5, 1.0F);
  const double masses[] = {1, 4, 6, 4, 1};
  p.h = {1};
  for (size_t i = 0; i < 5; ++i) p.w[i] = static_cast<float>(std::log(masses[i]));
  p.targets = {2};
  const DividedOutcome out = RunDivided(p, {}, {.ranks = 2, .split = Split::kRows});
  double dh = 0;
  for (size_t i = 0; i < 5; ++i) {
    const double expected = masses[i] / 16 - (i == 2 ? 1 : 0);  // dW = dlogits here
    dh += expected * std::log(masses[i]);
    // Rounded logarithms below 2 and a rounded exponential.
    EXPECT_TRUE(std::abs(out.dw[i] - expected) <= 3e-7) << i;
  }
  for (const RankOutcome& rank : out.ranks) {
    EXPECT_TRUE(std::abs(rank.sums.loss - std::log(16.0 / 6)) <= 3e-7);
    EXPECT_TRUE(std::abs(rank.dh[0] - dh) <= 1e-6);
  }
}

// cases.md 29, with the two columns on different ranks.
TEST(DividedHead, AnImpossibleTargetCostsItsDistance) {
  HeadProblem p(1, 1, 2, 1.0F);
  p.h = {1};
  p.w = {0, 200};
  p.targets = {0};
  const DividedOutcome out = RunDivided(p, {}, {.ranks = 2, .split = Split::kRows});
  for (const RankOutcome& rank : out.ranks) EXPECT_EQ(rank.sums.loss, 200);
  EXPECT_EQ(out.dw, std::vector<float>({-1, 1}));
  EXPECT_EQ(out.ranks[0].dh[0], 200);
}

// Ignored targets: nobody has to have them; and all of them (cases.md 17).
TEST(DividedHead, IgnoredTargets) {
  HeadProblem p(150, 5, 101, 1.0F);
  const Division claimed = {.ranks = 2}, unclaimed = {.ranks = 2, .claim_ignored = false};
  const DividedOutcome with = RunDivided(p, {}, claimed), without = RunDivided(p, {}, unclaimed);
  EXPECT_EQ(with.ranks[1].sums.loss, without.ranks[1].sums.loss);
  EXPECT_EQ(with.ranks[1].dh, without.ranks[1].dh);
  EXPECT_EQ(with.dw, without.dw);

  std::fill(p.weight.begin(), p.weight.end(), 0.0F);
  std::fill(p.gradient_weight.begin(), p.gradient_weight.end(), 0.0F);
  for (const Division& how : {claimed, unclaimed}) {
    const DividedOutcome none = RunDivided(p, {.z_loss = 1e-2}, how);
    for (const RankOutcome& rank : none.ranks) {
      EXPECT_EQ(rank.sums.loss, 0);
      EXPECT_EQ(rank.sums.lse_squared, 0);
      EXPECT_EQ(rank.sums.weight, 0);
      for (const float x : rank.own_dh) ASSERT_EQ(x, 0);
    }
    for (const float x : none.dw) ASSERT_EQ(x, 0);
  }
}

TEST(DividedHead, AccumulationAddsToWhatIsThere) {
  const HeadProblem p(70, 5, 101, 1.0F);
  const DividedOutcome fresh = RunDivided(p, {}, {.ranks = 2});
  const DividedOutcome added = RunDivided(p, {}, {.ranks = 2, .accumulate = true});
  for (size_t i = 0; i < fresh.dw.size(); ++i) {
    ASSERT_TRUE(std::abs(added.dw[i] - (fresh.dw[i] + 0.5F)) <= 1.2e-7F) << i;
  }
}

TEST(DividedHead, EvaluationGivesTheSameLosses) {
  const HeadProblem p(150, 5, 101, 1.0F);
  const DividedOutcome trained = RunDivided(p, {}, {.ranks = 2});
  const DividedOutcome evaluated = RunDivided(p, {}, {.ranks = 2, .gradients = false});
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(trained.ranks[k].token_loss, evaluated.ranks[k].token_loss);
    EXPECT_EQ(trained.ranks[k].sums.loss, evaluated.ranks[k].sums.loss);
  }
}

TEST(DividedHead, AgreesInBf16) {
  const HeadProblem p(150, 32, 300, 0.3F);
  for (const Split split : {Split::kBlocks, Split::kRows}) {
    for (const int ranks : {2, 4}) {
      Division how = {.ranks = ranks, .split = split, .act = DType::kBF16};
      const DividedOutcome divided = RunDivided(p, {}, how);
      how.ranks = 1;
      const DividedOutcome one = RunDivided(p, {}, how);
      const RankOutcome &first = divided.ranks[0], &whole = one.ranks[0];
      // Logits, losses and the gradient of logits are formed in fp32 from equal numbers; of the
      // latter, one in 10^4 falls on the other side of a rounding to 8 bits.
      EXPECT_TRUE(std::abs(first.sums.loss / whole.sums.loss - 1) <= 1e-6);
      EXPECT_TRUE(Distance(first.token_loss, Doubles(whole.token_loss)) <= 1e-6);
      EXPECT_TRUE(Distance(divided.dw, Doubles(one.dw)) <= 1e-4)
          << Distance(divided.dw, Doubles(one.dw));
      // Parts of dh are rounded to 8 bits each: at most 2^-9 of a part, 2^-9 / sqrt(3) on average,
      // and so is the whole; parts are about as large as the whole.
      EXPECT_TRUE(Distance(first.dh, Doubles(whole.dh)) <= 4e-3)
          << Distance(first.dh, Doubles(whole.dh));
    }
  }
}

TEST(DividedHead, TwoTilesShareTheMemoryOfOne) {
  const std::unique_ptr<Communicator> rank = PlannedRank(1, 4);
  for (const DType act : {DType::kF32, DType::kBF16}) {
    Memory memory(Memory::Mode::kDry);
    // 2^19 fp32 logits in all: 64 rows of 4,096 in each of two tiles.
    const LinearCrossEntropy head(&memory, 10'000, 8, 4'096, act, rank.get(), 1 << 21);
    EXPECT_EQ(head.tile_rows(4'096), 64);
    EXPECT_EQ(head.tile_rows(1'024), 256);
    EXPECT_EQ(head.tile_rows(7), 5'056);  // half the tokens, up to a multiple of 64
    // Two f32 tiles, one in bf16; figures of two tiles of up to 5,056 rows from 4 ranks; two fp32
    // numbers a token, three sums.
    EXPECT_EQ(memory.total(), 64 * 4'096 * (2 * 4 + (act == DType::kBF16 ? 2 : 0)) +
                                  2 * 4 * 5'056 * 24 + 10'000 * 8 + 24);
  }
  // One rank is nobody to divide with.
  const std::unique_ptr<Communicator> alone = OneRank();
  Memory with(Memory::Mode::kDry), without(Memory::Mode::kDry);
  const LinearCrossEntropy one(&with, 10'000, 8, 4'096, DType::kBF16, alone.get());
  const LinearCrossEntropy none(&without, 10'000, 8, 4'096, DType::kBF16);
  EXPECT_EQ(with.total(), without.total());
  EXPECT_EQ(one.tile_rows(4'096), none.tile_rows(4'096));
}

}  // namespace
}  // namespace overtok

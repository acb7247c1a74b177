// The tiled head against a dense one in double: losses, dh, dW, over several tiles whose border
// does not divide the tokens; weights of zero; the z-loss; accumulation; confident logits. Ids
// above 65,535 are targets.
#include "losses/linear_cross_entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/memory.h"

namespace overtok {
namespace {

struct Problem {
  int64_t tokens, hidden, classes;
  std::vector<float> h, w, weight, gradient_weight;
  std::vector<uint32_t> targets;

  Problem(int64_t t, int64_t d, int64_t v, float scale) : tokens(t), hidden(d), classes(v) {
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 1);
    h.resize(static_cast<size_t>(t * d));
    w.resize(static_cast<size_t>(v * d));
    for (float& x : h) x = normal(generator) * scale;
    for (float& x : w) x = normal(generator);
    for (int64_t i = 0; i < t; ++i) {
      // The last class and the first are targets too.
      const auto any = static_cast<uint32_t>(generator() % static_cast<uint64_t>(v));
      targets.push_back(i == 0 ? static_cast<uint32_t>(v - 1) : i == 1 ? 0U : any);
      weight.push_back(i % 5 == 3 ? 0.0F : 1.0F);
    }
    double sum = 0;
    for (const float x : weight) sum += x;
    for (const float x : weight) gradient_weight.push_back(static_cast<float>(x / sum));
  }
};

struct Dense {
  double loss = 0, lse_squared = 0, weight = 0;
  std::vector<double> token_loss, dh, dw;
};

Dense ComputeDense(const Problem& p, double z_loss) {
  Dense out;
  const auto d = static_cast<size_t>(p.hidden);
  const auto v = static_cast<size_t>(p.classes);
  out.dh.assign(p.h.size(), 0);
  out.dw.assign(p.w.size(), 0);
  std::vector<double> z(v);
  for (size_t t = 0; t < static_cast<size_t>(p.tokens); ++t) {
    double top = -INFINITY;
    for (size_t c = 0; c < v; ++c) {
      z[c] = 0;
      for (size_t i = 0; i < d; ++i) z[c] += static_cast<double>(p.h[t * d + i]) * p.w[c * d + i];
      top = std::max(top, z[c]);
    }
    double sum = 0;
    for (size_t c = 0; c < v; ++c) sum += std::exp(z[c] - top);
    const double lse = top + std::log(sum);
    out.token_loss.push_back(lse - z[p.targets[t]]);
    out.loss += p.weight[t] * out.token_loss.back();
    out.lse_squared += p.weight[t] * lse * lse;
    out.weight += p.weight[t];
    if (p.gradient_weight[t] == 0) continue;
    for (size_t c = 0; c < v; ++c) {
      const double q = std::exp(z[c] - lse);
      const double g =
          p.gradient_weight[t] * (q - (c == p.targets[t] ? 1 : 0) + 2 * z_loss * lse * q);
      for (size_t i = 0; i < d; ++i) {
        out.dh[t * d + i] += g * p.w[c * d + i];
        out.dw[c * d + i] += g * p.h[t * d + i];
      }
    }
  }
  return out;
}

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}

struct Outcome {
  LossSums sums;
  std::vector<float> token_loss, dh, dw;
  int64_t tile_rows = 0;
};

Outcome RunTiled(Problem& p, double z_loss, bool accumulate, bool gradients) {
  Memory memory(Memory::Mode::kReal);
  Context context = CpuContext();
  LinearCrossEntropy head(&memory, p.tokens, p.hidden, p.classes, DType::kF32,
                          /*tile_bytes=*/1 << 20);
  memory.Commit(&context);
  Outcome out;
  out.tile_rows = head.tile_rows(p.classes);
  out.dh.assign(p.h.size(), NAN);
  out.dw.assign(p.w.size(), accumulate ? 0.5F : NAN);
  LinearCrossEntropyArgs args;
  args.hidden = Tensor(p.h.data(), {p.tokens, p.hidden});
  args.weight = Tensor(p.w.data(), {p.classes, p.hidden});
  args.targets = Tensor(p.targets.data(), {p.tokens});
  args.loss_weight = Tensor(p.weight.data(), {p.tokens});
  if (gradients) {
    args.gradient_weight = Tensor(p.gradient_weight.data(), {p.tokens});
    args.d_hidden = Tensor(out.dh.data(), {p.tokens, p.hidden});
    args.d_weight = Tensor(out.dw.data(), {p.classes, p.hidden});
    args.accumulate_d_weight = accumulate;
    args.z_loss = z_loss;
  }
  out.sums = head.Run(context, args);
  const float* losses = head.token_losses().data<float>();
  out.token_loss.assign(losses, losses + p.tokens);
  return out;
}

void Compare(Problem p, double z_loss) {
  const Dense dense = ComputeDense(p, z_loss);
  const Outcome tiled = RunTiled(p, z_loss, false, true);
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

TEST(LinearCrossEntropy, SeveralTilesAgreeWithDense) {
  Problem p(150, 3, 70'001, 1.0F);
  EXPECT_LT(RunTiled(p, 0, false, false).tile_rows, 150);  // else this is no test of tiles
  Compare(p, 0);
}
TEST(LinearCrossEntropy, OneTileAgreesWithDense) { Compare(Problem(37, 5, 101, 1.0F), 0); }
TEST(LinearCrossEntropy, ZLossAgreesWithDense) { Compare(Problem(37, 5, 101, 1.0F), 1e-2); }
TEST(LinearCrossEntropy, ConfidentLogitsAgreeWithDense) { Compare(Problem(37, 5, 101, 40.0F), 0); }

TEST(LinearCrossEntropy, AccumulationAddsToWhatIsThere) {
  Problem p(37, 5, 101, 1.0F);
  const Outcome fresh = RunTiled(p, 0, false, true);
  const Outcome added = RunTiled(p, 0, true, true);
  for (size_t i = 0; i < fresh.dw.size(); ++i) {
    ASSERT_TRUE(std::abs(added.dw[i] - (fresh.dw[i] + 0.5F)) <= 1e-7F) << i;
  }
}

TEST(LinearCrossEntropy, EvaluationGivesTheSameLosses) {
  Problem p(150, 3, 70'001, 1.0F);
  const Outcome trained = RunTiled(p, 0, false, true);
  const Outcome evaluated = RunTiled(p, 0, false, false);
  EXPECT_EQ(trained.token_loss, evaluated.token_loss);
  EXPECT_EQ(trained.sums.loss, evaluated.sums.loss);
}

TEST(LinearCrossEntropy, AllTargetsIgnored) {
  Problem p(37, 5, 101, 1.0F);
  std::fill(p.weight.begin(), p.weight.end(), 0.0F);
  std::fill(p.gradient_weight.begin(), p.gradient_weight.end(), 0.0F);
  const Outcome out = RunTiled(p, 1e-2, false, true);
  EXPECT_EQ(out.sums.loss, 0);
  EXPECT_EQ(out.sums.weight, 0);
  for (const float x : out.dh) ASSERT_EQ(x, 0);
  for (const float x : out.dw) ASSERT_EQ(x, 0);
}

}  // namespace
}  // namespace overtok

// Bias and focal loss of the softmax kernel: every storage type, a plain reference in double,
// double differences, confident rows, rows without weight.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/ops/softmax_xent.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillIds;
using testing::FillNormal;
using testing::FillUniform;
using testing::Operand;
using testing::Role;
using testing::ScratchContext;
using testing::Storage;

constexpr double kGammas[] = {0, 0.5, 1, 2};

// f64 is the CPU's.
Device* DeviceOf(DType dtype) {
  return dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice();
}

// What one run needs, in one storage type.
struct Rows {
  Rows(int64_t rows, int64_t classes, DType statistic, DType gradient_type)
      : logits(statistic, {rows, classes}),
        targets(DType::kU32, {rows}),
        weight(statistic, {rows}),
        bias(statistic, {classes}),
        gradient(gradient_type, {rows, classes}),
        loss(statistic, {rows}),
        lse(statistic, {rows}) {
    FillNormal(logits, 1, 3);
    FillIds(targets, 2, classes);
    FillUniform(weight, 3, 0.5, 1.5);
    FillNormal(bias, 4, 2);
    gradient.Poison();
    loss.Poison();
    lse.Poison();
  }
  void Run(double gamma, double z_loss, bool with_bias, bool gradients = true) const {
    const ScratchContext context(0, DeviceOf(logits.dtype()));
    SoftmaxXentArgs args = {.logits = logits.tensor(),
                            .targets = targets.tensor(),
                            .weight = weight.tensor(),
                            .dlogits = gradients ? gradient.tensor() : Tensor(),
                            .loss = loss.tensor(),
                            .lse = lse.tensor(),
                            .z_loss = z_loss,
                            .focal_gamma = gamma};
    if (with_bias) args.bias = bias.tensor();
    SoftmaxXent(*context, args);
  }

  Buffer logits, targets, weight, bias, gradient, loss, lse;
};

struct Expected {
  std::vector<double> gradient, loss, lse;
};

Expected Reference(const Rows& x, double gamma, double z_loss, bool with_bias) {
  Expected out;
  const int64_t rows = x.logits.shape()[0], classes = x.logits.shape()[1];
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<double> z;
    double sum = 0;
    for (int64_t i = 0; i < classes; ++i) {
      z.push_back(x.logits.Get(r * classes + i) + (with_bias ? x.bias.Get(i) : 0));
      sum += std::exp(z.back());
    }
    const auto target = static_cast<int64_t>(x.targets.Get(r));
    const double lse = std::log(sum), l = lse - z[static_cast<size_t>(target)], p = std::exp(-l);
    const double slope =
        gamma == 0 ? 1 : std::pow(1 - p, gamma) + gamma * std::pow(1 - p, gamma - 1) * p * l;
    out.loss.push_back((gamma == 0 ? 1 : std::pow(1 - p, gamma)) * l);
    out.lse.push_back(lse);
    for (int64_t i = 0; i < classes; ++i) {
      const double q = std::exp(z[static_cast<size_t>(i)] - lse);
      out.gradient.push_back(x.weight.Get(r) *
                             (slope * (q - (i == target ? 1 : 0)) + 2 * z_loss * lse * q));
    }
  }
  return out;
}

TEST(SoftmaxXentFocal, AgreesAcrossStorageTypesAndThreads) {
  // One class, widths no vector divides, more than one strip of the sum (2,048).
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{1, 1}, {3, 7}, {40, 257}, {9, 5003}};
  for (const auto& [rows, classes] : sizes) {
    for (const double gamma : kGammas) {
      const std::vector<Operand> operands = {
          {.name = "logits",
           .storage = Storage::kStatistic,
           .shape = {rows, classes},
           .fill = [](Buffer& b) { FillNormal(b, 1, 3); }},
          {.name = "targets",
           .storage = Storage::kFixed,
           .shape = {rows},
           .fill = [&, n = classes](Buffer& b) { FillIds(b, 2, n); },
           .fixed = DType::kU32},
          {.name = "weight",
           .storage = Storage::kStatistic,
           .shape = {rows},
           .fill = [](Buffer& b) { FillUniform(b, 3, 0, 2); }},
          {.name = "bias",
           .storage = Storage::kStatistic,
           .shape = {classes},
           .fill = [](Buffer& b) { FillNormal(b, 4, 2); }},
          // x + bias and x + bias - max are rounded: up to 25 each gives 50 units. bf16: one
          // rounding beside.
          {.name = "dlogits",
           .role = Role::kOutput,
           .shape = {rows, classes},
           .value_units = 56,
           .tensor_units = 1,
           .bf16_value_units = 1.01,
           .bf16_tensor_units = 1e-4},
          {.name = "loss",
           .role = Role::kOutput,
           .storage = Storage::kStatistic,
           .shape = {rows},
           .value_units = 16},
          {.name = "lse", .role = Role::kOutput, .storage = Storage::kStatistic, .shape = {rows}}};
      testing::CheckOp({.name = "softmax cross-entropy, gamma " + std::to_string(gamma) + " " +
                                Shape({rows, classes}).ToString(),
                        .operands = operands,
                        .run = [gamma](const Context& context, const std::vector<Tensor>& t) {
                          // Logits are scratch beside a bf16 gradient.
                          const bool aligned = reinterpret_cast<uintptr_t>(t[0].raw()) % 16 == 0;
                          const Buffer copy(
                              t[0].dtype(), t[0].shape(),
                              aligned ? Buffer::Start::kAligned : Buffer::Start::kOdd);
                          const Tensor logits = copy.tensor();
                          std::memcpy(logits.raw(), t[0].raw(), static_cast<size_t>(t[0].bytes()));
                          SoftmaxXent(context, {.logits = logits,
                                                .targets = t[1],
                                                .weight = t[2],
                                                .dlogits = t[4],
                                                .loss = t[5],
                                                .lse = t[6],
                                                .z_loss = 1e-2,
                                                .bias = t[3],
                                                .focal_gamma = gamma});
                        }});
    }
  }
}

TEST(SoftmaxXentFocal, MatchesTheFormula) {
  for (const double gamma : kGammas) {
    for (const bool with_bias : {false, true}) {
      for (const double z_loss : {0.0, 0.05}) {
        const Rows x(5, 37, DType::kF64, DType::kF64);
        const Buffer before(x.logits);
        x.Run(gamma, z_loss, with_bias);
        const Expected expected = Reference(x, gamma, z_loss, with_bias);
        const std::string what = "gamma " + std::to_string(gamma);
        // The reference's own 1 - p and differences of logits near 10.
        testing::ExpectClose(what + " gradient", x.gradient, expected.gradient,
                             {.relative = 1e-12, .absolute = 1e-14});
        testing::ExpectClose(what + " loss", x.loss, expected.loss,
                             {.relative = 1e-12, .absolute = 1e-14});
        testing::ExpectClose(what + " lse", x.lse, expected.lse, {.relative = 1e-14});
        EXPECT_TRUE(x.logits.SameBits(before));
        // Evaluation: the same losses.
        const Rows evaluated(5, 37, DType::kF64, DType::kF64);
        evaluated.Run(gamma, z_loss, with_bias, false);
        EXPECT_TRUE(evaluated.loss.SameBits(x.loss) && evaluated.logits.SameBits(before));
      }
    }
  }
}

TEST(SoftmaxXentFocal, GradientMatchesDifferences) {
  for (const double gamma : kGammas) {
    for (const bool with_bias : {false, true}) {
      Rows x(3, 11, DType::kF64, DType::kF64);
      const double z_loss = 0.1;
      x.Run(gamma, z_loss, with_bias);
      testing::CheckGradient("dlogits, gamma " + std::to_string(gamma), x.logits, x.gradient, [&] {
        x.Run(gamma, z_loss, with_bias, false);
        double total = 0;
        for (int64_t r = 0; r < 3; ++r)
          total += x.weight.Get(r) * (x.loss.Get(r) + z_loss * x.lse.Get(r) * x.lse.Get(r));
        return total;
      });
    }
  }
}

// 1 - p comes from the classes that are no target, not from a probability near 1: it keeps its
// digits in fp32 (cases.md 14), and so do (1 - p)^gamma and the gradient.
TEST(SoftmaxXentFocal, ConfidentRowsKeepTheirDigits) {
  for (const double gamma : kGammas) {
    for (const double rest : {0.1, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9, 1e-11}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const double p = 1 - rest;
        // fp32 holds the logit to 6e-8 of it; the expectation is for what it holds.
        const float logit = static_cast<float>(std::log(p / rest));
        const double l = std::log1p(std::exp(-static_cast<double>(logit)));
        const double q = -std::expm1(-l);
        Buffer logits(DType::kF32, {1, 2}, {static_cast<double>(logit), 0});
        const Buffer targets(DType::kU32, {1}), weight(DType::kF32, {1}, {1}),
            lse(DType::kF32, {1});
        const Buffer gradient(dtype, {1, 2}), loss(DType::kF32, {1});
        const ScratchContext context(0);
        SoftmaxXent(*context, {.logits = logits.tensor(),
                               .targets = targets.tensor(),
                               .weight = weight.tensor(),
                               .dlogits = gradient.tensor(),
                               .loss = loss.tensor(),
                               .lse = lse.tensor(),
                               .focal_gamma = gamma});
        const double slope =
            std::pow(q, gamma) + (gamma == 0 ? 0 : gamma * std::pow(q, gamma - 1) * (1 - q) * l);
        const std::string what =
            "1 - p = " + std::to_string(rest) + ", gamma " + std::to_string(gamma);
        // fp32: the exponential's 2 units of 1.2e-7, twice for gamma 2, and the result's rounding.
        // bf16: one rounding, 2^-8.
        const double relative = dtype == DType::kF32 ? 8e-7 : 0.00391;
        testing::ExpectClose(what, gradient, {-slope * q, slope * q}, {.relative = relative});
        testing::ExpectClose(what, loss, {std::pow(q, gamma) * l}, {.relative = 8e-7});
      }
    }
  }
}

// A row that is certain in fp32 has loss 0 and a finite gradient, though (1 - p)^(gamma - 1) has
// no limit; one that is certainly wrong costs its distance (cases.md 29).
TEST(SoftmaxXentFocal, CertaintyIsFinite) {
  for (const double gamma : {0.5, 1.0, 2.0}) {
    Buffer logits(DType::kF32, {2, 2}, {0, 200, 200, 0}), targets(DType::kU32, {2});
    const Buffer weight(DType::kF32, {2}, {1, 1});
    const Buffer gradient(DType::kF32, {2, 2}), loss(DType::kF32, {2}), lse(DType::kF32, {2});
    const ScratchContext context(0);
    SoftmaxXent(*context, {.logits = logits.tensor(),
                           .targets = targets.tensor(),
                           .weight = weight.tensor(),
                           .dlogits = gradient.tensor(),
                           .loss = loss.tensor(),
                           .lse = lse.tensor(),
                           .focal_gamma = gamma});
    EXPECT_EQ(loss.Get(0), 200);
    EXPECT_EQ(loss.Get(1), 0);
    testing::ExpectClose("gradient", gradient, {-1, 1, 0, 0}, {});
  }
}

TEST(SoftmaxXentFocal, RowsOfWeightZeroHaveExactlyNoGradient) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Rows x(3, 21, DType::kF32, dtype);
    for (int64_t r = 0; r < 3; ++r) x.weight.Set(r, 0);
    x.logits.Set(5, std::numeric_limits<double>::infinity());
    x.Run(1, 1e-4, true);
    for (int64_t i = 0; i < x.gradient.size(); ++i) ASSERT_TRUE(x.gradient.Get(i) == 0) << i;
    EXPECT_TRUE(x.loss.Get(1) > 0 && x.loss.Get(2) > 0);
  }
}

TEST(SoftmaxXentFocal, NotANumberReachesTheLoss) {
  for (const bool in_bias : {false, true}) {
    for (const int64_t at : {0, 3, 15, 40}) {
      Rows x(1, 41, DType::kF32, DType::kF32);
      x.targets.Set(0, 3);
      (in_bias ? x.bias : x.logits).Set(at, std::numeric_limits<double>::quiet_NaN());
      x.Run(2, 0, true);
      EXPECT_TRUE(std::isnan(x.loss.Get(0))) << at;
    }
  }
}

}  // namespace
}  // namespace overtok

#include "core/ops/softmax_xent.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

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

// f64 is the CPU's.
Device* DeviceOf(DType dtype) {
  return dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice();
}

struct Size {
  int64_t rows, classes;
};
// One class, widths no vector divides, more than one strip of the sum (2,048), enough rows for two
// threads; rows that a device cannot keep in shared memory (40,960).
const std::vector<Size> kSizes = {{1, 1},    {3, 7},      {5, 100},   {40, 257},
                                  {9, 5003}, {1, 41'003}, {2, 41'004}};

std::vector<Operand> Operands(const Size& s, Storage gradient) {
  return {
      {.name = "logits",
       .storage = Storage::kStatistic,
       .shape = {s.rows, s.classes},
       .fill = [](Buffer& b) { FillNormal(b, 1, 3); }},
      {.name = "targets",
       .storage = Storage::kFixed,
       .shape = {s.rows},
       .fill = [&](Buffer& b) { FillIds(b, 2, s.classes); },
       .fixed = DType::kU32},
      {.name = "weight",
       .storage = Storage::kStatistic,
       .shape = {s.rows},
       .fill = [](Buffer& b) { FillUniform(b, 3, 0, 2); }},
      // The argument x - max of the exponential is rounded: |x - max| up to 25 gives 25 units.
      // bf16: one rounding beside.
      {.name = "dlogits",
       .role = Role::kOutput,
       .storage = gradient,
       .shape = {s.rows, s.classes},
       .value_units = 32,
       .tensor_units = 1,
       .bf16_value_units = 1.01,
       .bf16_tensor_units = 1e-4},
      {.name = "loss", .role = Role::kOutput, .storage = Storage::kStatistic, .shape = {s.rows}},
      {.name = "lse", .role = Role::kOutput, .storage = Storage::kStatistic, .shape = {s.rows}}};
}

// The harness holds inputs to be left alone; logits are scratch beside a bf16 gradient.
void RunOnCopy(const Context& context, SoftmaxXentArgs args) {
  if (args.logits.dtype() != DType::kF32) return SoftmaxXent(context, args);
  const bool aligned = reinterpret_cast<uintptr_t>(args.logits.raw()) % 16 == 0;
  const Buffer copy(DType::kF32, args.logits.shape(),
                    aligned ? Buffer::Start::kAligned : Buffer::Start::kOdd);
  std::memcpy(copy.tensor().raw(), args.logits.raw(), static_cast<size_t>(args.logits.bytes()));
  args.logits = copy.tensor();
  SoftmaxXent(context, args);
}

TEST(SoftmaxXent, AgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    for (const double z_loss : {0.0, 1e-2}) {
      const std::string name = "softmax cross-entropy " + Shape({s.rows, s.classes}).ToString();
      testing::CheckOp({.name = name,
                        .operands = Operands(s, Storage::kActivation),
                        .run = [&](const Context& c, const std::vector<Tensor>& t) {
                          RunOnCopy(c, {t[0], t[1], t[2], t[3], t[4], t[5], z_loss});
                        }});
    }
  }
}

TEST(SoftmaxXent, MatchesTheFormulaInPlaceAndApart) {
  const int64_t rows = 4, classes = 19;
  const double z_loss = 0.05;
  Buffer logits(DType::kF64, {rows, classes}), targets(DType::kU32, {rows}),
      weight(DType::kF64, {rows});
  Buffer loss(DType::kF64, {rows}), lse(DType::kF64, {rows});
  FillNormal(logits, 1, 4);
  FillIds(targets, 2, classes);
  FillUniform(weight, 3, 0, 1);
  std::vector<double> expected, expected_loss, expected_lse;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = 0; i < classes; ++i) sum += std::exp(logits.Get(r * classes + i));
    const double l = std::log(sum);
    expected_lse.push_back(l);
    const auto target = static_cast<int64_t>(targets.Get(r));
    expected_loss.push_back(l - logits.Get(r * classes + target));
    for (int64_t i = 0; i < classes; ++i) {
      const double p = std::exp(logits.Get(r * classes + i) - l);
      expected.push_back(weight.Get(r) * (p - (i == target ? 1 : 0) + 2 * z_loss * l * p));
    }
  }
  const ScratchContext context(0, CpuDevice());
  Buffer apart(DType::kF64, {rows, classes});
  SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), apart.tensor(),
                         loss.tensor(), lse.tensor(), z_loss});
  testing::ExpectClose("gradient", apart, expected, {.relative = 1e-13, .absolute = 1e-15});
  testing::ExpectClose("loss", loss, expected_loss, {.relative = 1e-14, .absolute = 1e-14});
  testing::ExpectClose("lse", lse, expected_lse, {.relative = 1e-14});
  // Without a gradient: the same loss, logits untouched.
  Buffer loss_only(DType::kF64, {rows});
  const Buffer before(logits);
  SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), Tensor(),
                         loss_only.tensor(), lse.tensor(), z_loss});
  EXPECT_TRUE(loss_only.SameBits(loss) && logits.SameBits(before));
  SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), logits.tensor(),
                         loss.tensor(), lse.tensor(), z_loss});
  EXPECT_TRUE(logits.SameBits(apart));
}

TEST(SoftmaxXent, GradientMatchesDifferences) {
  const int64_t rows = 3, classes = 11;
  const double z_loss = 0.1;
  Buffer logits(DType::kF64, {rows, classes}), targets(DType::kU32, {rows}),
      weight(DType::kF64, {rows});
  Buffer loss(DType::kF64, {rows}), lse(DType::kF64, {rows}),
      gradient(DType::kF64, {rows, classes});
  FillNormal(logits, 1, 2);
  FillIds(targets, 2, classes);
  FillUniform(weight, 3, 0.5, 1.5);
  const ScratchContext context(0, CpuDevice());
  SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), gradient.tensor(),
                         loss.tensor(), lse.tensor(), z_loss});
  testing::CheckGradient("dlogits", logits, gradient, [&] {
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), Tensor(),
                           loss.tensor(), lse.tensor(), z_loss});
    double total = 0;
    for (int64_t r = 0; r < rows; ++r)
      total += weight.Get(r) * (loss.Get(r) + z_loss * lse.Get(r) * lse.Get(r));
    return total;
  });
}

// Logits that climb and fall by hundreds along the row: a sum that is formed in one visit has to
// change what it counts from.
TEST(SoftmaxXent, LongRowsWithLogitsFarApart) {
  const int64_t classes = 50'000;
  for (const double height : {300.0, -300.0}) {
    Buffer logits(DType::kF32, {2, classes}), targets(DType::kU32, {2}, {20'000, 49'999}),
        weight(DType::kF32, {2}, {1, 0.5}), loss(DType::kF32, {2}), lse(DType::kF32, {2}),
        gradient(DType::kF32, {2, classes});
    for (int64_t r = 0; r < 2; ++r) {
      for (int64_t i = 0; i < classes; ++i) {
        const double place = static_cast<double>(i) / static_cast<double>(classes - 1);
        logits.Set(r * classes + i, height * (r == 0 ? place : std::abs(2 * place - 1)) - 100);
      }
    }
    std::vector<double> expected, losses, sums;
    for (int64_t r = 0; r < 2; ++r) {
      double most = -1e9, sum = 0;
      for (int64_t i = 0; i < classes; ++i) most = std::max(most, logits.Get(r * classes + i));
      for (int64_t i = 0; i < classes; ++i) sum += std::exp(logits.Get(r * classes + i) - most);
      const auto target = static_cast<int64_t>(targets.Get(r));
      sums.push_back(most + std::log(sum));
      losses.push_back(sums.back() - logits.Get(r * classes + target));
      for (int64_t i = 0; i < classes; ++i) {
        const double p = std::exp(logits.Get(r * classes + i) - sums.back());
        expected.push_back(weight.Get(r) * (p - (i == target ? 1 : 0)));
      }
    }
    const ScratchContext context(0);
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), gradient.tensor(),
                           loss.tensor(), lse.tensor()});
    // x - max up to 300 is rounded to 2^-24 of it, but counts only where it is below 20; f32
    // exponentials below 1e-38 are nothing.
    testing::ExpectClose("gradient", gradient, expected, {.relative = 6e-6, .absolute = 1e-10});
    testing::ExpectClose("loss", loss, losses, {.relative = 3e-7});
    testing::ExpectClose("lse", lse, sums, {.relative = 3e-7});
    // Evaluation, and a gradient in the logits' place: the same bits.
    Buffer loss_only(DType::kF32, {2});
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), Tensor(),
                           loss_only.tensor(), lse.tensor()});
    EXPECT_TRUE(loss_only.SameBits(loss));
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), logits.tensor(),
                           loss.tensor(), lse.tensor()});
    EXPECT_TRUE(logits.SameBits(gradient) && loss_only.SameBits(loss));
  }
}

// Bits depend on values and sizes, not on where the tensors lie.
TEST(SoftmaxXent, AddressesDoNotMatter) {
  for (const int64_t classes : {100, 5'004, 41'004}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      std::vector<Buffer> gradients, losses;
      for (const Buffer::Start start : {Buffer::Start::kOdd, Buffer::Start::kAligned}) {
        Buffer logits(DType::kF32, {3, classes}, start), targets(DType::kU32, {3}),
            weight(DType::kF32, {3}), bias(DType::kF32, {classes}, start), lse(DType::kF32, {3});
        FillNormal(logits, 1, 4);
        FillIds(targets, 2, classes);
        FillUniform(weight, 3, 0.5, 1);
        FillNormal(bias, 4, 1);
        gradients.emplace_back(dtype, Shape{3, classes}, start);
        losses.emplace_back(DType::kF32, Shape{3});
        const ScratchContext context(0);
        SoftmaxXent(*context, {.logits = logits.tensor(),
                               .targets = targets.tensor(),
                               .weight = weight.tensor(),
                               .dlogits = gradients.back().tensor(),
                               .loss = losses.back().tensor(),
                               .lse = lse.tensor(),
                               .bias = bias.tensor()});
      }
      EXPECT_TRUE(gradients[0].SameBits(gradients[1]) && losses[0].SameBits(losses[1])) << classes;
    }
  }
}

// cases.md 14: p - 1 of a confident row is formed before it is rounded to bf16, once.
TEST(SoftmaxXent, ConfidentRowsKeepTheTargetsGradientInBf16) {
  for (const double p : {0.9, 0.99, 0.999, 0.9999}) {
    const std::vector<double> values = {std::log(p / (1 - p)), 0};
    Buffer logits(DType::kF32, {1, 2}, values), targets(DType::kU32, {1}),
        weight(DType::kF32, {1}, {1});
    Buffer gradient(DType::kBF16, {1, 2}), loss(DType::kF32, {1}), lse(DType::kF32, {1});
    const ScratchContext context(0);
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), gradient.tensor(),
                           loss.tensor(), lse.tensor()});
    // One rounding to bf16 (2^-8), and the f32 logit's own error magnified by p - 1: < 0.4 % +
    // that.
    testing::ExpectClose("gradient at p = " + std::to_string(p), gradient, {p - 1, 1 - p},
                         {.relative = 0.004 + 6e-8 / (1 - p)});
  }
}

// cases.md 17: all weights zero: the gradient is exactly zero, losses are still there; and no rows.
TEST(SoftmaxXent, RowsOfWeightZeroHaveALossAndExactlyNoGradient) {
  const int64_t rows = 3, classes = 21;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Buffer logits(DType::kF32, {rows, classes}), targets(DType::kU32, {rows}),
        weight(DType::kF32, {rows});
    Buffer gradient(dtype, {rows, classes}), loss(DType::kF32, {rows}), lse(DType::kF32, {rows});
    FillNormal(logits, 1, 2);
    logits.Set(5, std::numeric_limits<double>::infinity());  // even where the row is broken
    gradient.Poison();
    loss.Poison();
    const ScratchContext context(0);
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), gradient.tensor(),
                           loss.tensor(), lse.tensor(), 1e-4});
    for (int64_t i = 0; i < gradient.size(); ++i) ASSERT_TRUE(gradient.Get(i) == 0) << i;
    EXPECT_TRUE(loss.Get(1) > 0 && loss.Get(2) > 0);
  }
  Buffer none(DType::kF32, {0, 5}), ids(DType::kU32, {0}), one(DType::kF32, {0});
  const ScratchContext context(0);
  SoftmaxXent(*context, {none.tensor(), ids.tensor(), one.tensor(), none.tensor(), one.tensor(),
                         one.tensor()});
}

// cases.md 29: a loss formed as log of a probability would be infinite or clamped here.
TEST(SoftmaxXent, AnImpossibleTargetCostsExactlyItsDistance) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Buffer logits(dtype, {1, 2}, {0, 200}), targets(DType::kU32, {1}), weight(dtype, {1}, {1});
    Buffer gradient(dtype, {1, 2}), loss(dtype, {1}), lse(dtype, {1});
    const ScratchContext context(0, DeviceOf(dtype));
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), gradient.tensor(),
                           loss.tensor(), lse.tensor()});
    EXPECT_EQ(loss.Get(0), 200);
    EXPECT_EQ(lse.Get(0), 200);
    testing::ExpectClose("gradient", gradient, {-1, 1}, {});
  }
}

// cases.md 13: in-place at logits near -100, the target's logit is read before it is overwritten.
TEST(SoftmaxXent, InPlaceRowsGiveTheSameBitsEveryTime) {
  const int64_t rows = 16, classes = 33;
  Buffer start(DType::kF32, {rows, classes}), targets(DType::kU32, {rows}),
      weight(DType::kF32, {rows});
  FillNormal(start, 1, 0.1);
  for (int64_t i = 0; i < start.size(); ++i) start.Set(i, start.Get(i) - 100);
  FillIds(targets, 2, classes);
  FillUniform(weight, 3, 1, 2);
  Buffer first(DType::kF32, {rows});
  for (int repeat = 0; repeat < 100; ++repeat) {
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): written through its tensor
    Buffer logits(start);
    Buffer loss(DType::kF32, {rows}), lse(DType::kF32, {rows});
    const ScratchContext context(0);
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), logits.tensor(),
                           loss.tensor(), lse.tensor()});
    if (repeat == 0) {
      for (int64_t r = 0; r < rows; ++r) {
        ASSERT_TRUE(std::isfinite(loss.Get(r)));
        first.Set(r, loss.Get(r));
      }
    }
    ASSERT_TRUE(loss.SameBits(first));
  }
}

TEST(SoftmaxXent, NotANumberReachesTheLoss) {
  for (const int64_t at : {0, 15, 40}) {
    Buffer logits(DType::kF32, {1, 41}), targets(DType::kU32, {1}), weight(DType::kF32, {1}, {1});
    Buffer loss(DType::kF32, {1}), lse(DType::kF32, {1});
    logits.Set(at, std::numeric_limits<double>::quiet_NaN());
    targets.Set(0, 3);
    const ScratchContext context(0);
    SoftmaxXent(*context, {logits.tensor(), targets.tensor(), weight.tensor(), Tensor(),
                           loss.tensor(), lse.tensor()});
    EXPECT_TRUE(std::isnan(loss.Get(0))) << at;
  }
}

}  // namespace
}  // namespace overtok

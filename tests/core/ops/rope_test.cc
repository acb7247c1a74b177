#include "core/ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::FillUniform;
using testing::Role;
using testing::ScratchContext;
using testing::Storage;

struct Size {
  int64_t batch, length, heads, width;
};
// Half heads below, at and above vector widths; more rows than one block of the gain's sum; widths
// for each way in which devices divide a head.
const std::vector<Size> kSizes = {{1, 1, 1, 2},   {2, 3, 1, 6},    {1, 9, 2, 64},   {3, 25, 3, 40},
                                  {1, 35, 3, 80}, {2, 17, 5, 128}, {1, 33, 2, 272}, {1, 3, 2, 544}};
constexpr double kTheta = 10000;

void FillX(Buffer& b) { FillNormal(b, 1, 2); }
void FillGain(Buffer& b) { FillUniform(b, 2, 0.5, 1.5); }
void FillDy(Buffer& b) { FillNormal(b, 3, 1); }

// bf16 values, so that every run has the same tables.
void FillCos(Buffer& b) {
  Buffer other(b.dtype(), b.shape());
  FillRopeTables(kTheta, true, {b.tensor(), other.tensor()});
}
void FillSin(Buffer& b) {
  Buffer other(b.dtype(), b.shape());
  FillRopeTables(kTheta, true, {other.tensor(), b.tensor()});
}

TEST(QkNormRope, ForwardAgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    const int64_t rows = s.batch * s.length;
    const Shape shape = {rows, s.heads, s.width}, table = {s.length, s.width / 2};
    testing::CheckOp(
        {.name = "QK-norm and RoPE forward " + shape.ToString(),
         .operands =
             {{.name = "x", .shape = shape, .fill = FillX},
              {.name = "gain",
               .storage = Storage::kStatistic,
               .shape = {s.width},
               .fill = FillGain},
              {.name = "cos", .storage = Storage::kStatistic, .shape = table, .fill = FillCos},
              {.name = "sin", .storage = Storage::kStatistic, .shape = table, .fill = FillSin},
              // The rotation's difference cancels: relative to the tensor. bf16 rounds
              // x rstd, the gain, their product and the result.
              {.name = "y",
               .role = Role::kOutput,
               .shape = shape,
               .value_units = 4,
               .tensor_units = 8,
               .bf16_value_units = 1,
               .bf16_tensor_units = 3},
              {.name = "rstd",
               .role = Role::kOutput,
               .storage = Storage::kStatistic,
               .shape = {rows, s.heads},
               .value_units = 8,
               .tensor_units = 0}},
         .run = [](const Context& c, const std::vector<Tensor>& t) {
           QkNormRopeForward(
               c, {.x = t[0], .gain = t[1], .y = t[4], .rstd = t[5], .tables = {t[2], t[3]}});
         }});
  }
}

TEST(QkNormRope, BackwardAgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    const int64_t rows = s.batch * s.length;
    const Shape shape = {rows, s.heads, s.width}, table = {s.length, s.width / 2};
    testing::CheckOp(
        {.name = "QK-norm and RoPE backward " + shape.ToString(),
         .operands =
             {{.name = "dy", .shape = shape, .fill = FillDy},
              {.name = "x", .shape = shape, .fill = FillX},
              {.name = "gain",
               .storage = Storage::kStatistic,
               .shape = {s.width},
               .fill = FillGain},
              {.name = "rstd",
               .storage = Storage::kStatistic,
               .shape = {rows, s.heads},
               .fill = [](Buffer& b) { FillUniform(b, 5, 0.4, 0.6); }},
              {.name = "cos", .storage = Storage::kStatistic, .shape = table, .fill = FillCos},
              {.name = "sin", .storage = Storage::kStatistic, .shape = table, .fill = FillSin},
              {.name = "dx",
               .role = Role::kOutput,
               .shape = shape,
               .value_units = 8,
               .tensor_units = 16,
               .bf16_value_units = 2,
               .bf16_tensor_units = 2},
              // Sums of up to 225 terms.
              {.name = "dgain",
               .role = Role::kInputOutput,
               .storage = Storage::kStatistic,
               .shape = {s.width},
               .fill = FillGain,
               .value_units = 16,
               .tensor_units = 32,
               .bf16_value_units = 2,
               .bf16_tensor_units = 2}},
         .run =
             [](const Context& c, const std::vector<Tensor>& t) {
               QkNormRopeBackward(c, {.dy = t[0],
                                      .x = t[1],
                                      .gain = t[2],
                                      .rstd = t[3],
                                      .dx = t[6],
                                      .dgain = t[7],
                                      .tables = {t[4], t[5]},
                                      .accumulate_dgain = true});
             },
         .scratch =
             [&](DType act) { return QkNormRopeBackwardScratch(rows, s.heads, s.width, act); }});
  }
}

// cases.md 95: the pairing (i, i + D/2), held at positions 1 and on, in f32 and f64. Position 0 is
// no rotation at all and would pass with any pairing.
TEST(QkNormRope, RotatesHalfSplitPairsByPositionTimesFrequency) {
  const int64_t batch = 2, length = 8, heads = 2, width = 8, half = width / 2;
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    Buffer x(dtype, {batch * length, heads, width}), y(dtype, x.shape()), gain(dtype, {width});
    Buffer rstd(dtype, {batch * length, heads});
    Buffer cosine(dtype, {length, half}), sine(dtype, {length, half});
    FillX(x);
    FillGain(gain);
    FillRopeTables(kTheta, false, {cosine.tensor(), sine.tensor()});
    const ScratchContext context(0, dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice());
    QkNormRopeForward(*context, {.x = x.tensor(),
                                 .gain = gain.tensor(),
                                 .y = y.tensor(),
                                 .rstd = rstd.tensor(),
                                 .tables = {cosine.tensor(), sine.tensor()},
                                 .eps = 1e-6});
    std::vector<double> expected(static_cast<size_t>(x.size()));
    for (int64_t row = 0; row < batch * length * heads; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) sum += x.Get(row * width + i) * x.Get(row * width + i);
      const double r = 1 / std::sqrt(sum / static_cast<double>(width) + 1e-6);
      const auto position = static_cast<double>(row / heads % length);
      for (int64_t i = 0; i < half; ++i) {
        const double angle =
            position * std::pow(kTheta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
        const double a = x.Get(row * width + i) * r * gain.Get(i);
        const double b = x.Get(row * width + half + i) * r * gain.Get(half + i);
        expected[static_cast<size_t>(row * width + i)] = a * std::cos(angle) - b * std::sin(angle);
        expected[static_cast<size_t>(row * width + half + i)] =
            b * std::cos(angle) + a * std::sin(angle);
      }
    }
    // Some ten roundings of values up to 3.
    const double unit = dtype == DType::kF32 ? 6e-8 : 1.2e-16;
    testing::ExpectClose("y", y, expected, {.relative = 0, .absolute = 30 * unit});
  }
}

TEST(QkNormRope, GradientMatchesDifferences) {
  const int64_t length = 5, heads = 2, width = 6, rows = 2 * length;
  Buffer x(DType::kF64, {rows, heads, width}), y(DType::kF64, x.shape()),
      dy(DType::kF64, x.shape());
  Buffer dx(DType::kF64, x.shape()), gain(DType::kF64, {width}), dgain(DType::kF64, {width});
  Buffer rstd(DType::kF64, {rows, heads});
  Buffer cosine(DType::kF64, {length, width / 2}), sine(DType::kF64, {length, width / 2});
  FillX(x);
  FillGain(gain);
  FillDy(dy);
  const RopeTables tables = {cosine.tensor(), sine.tensor()};
  FillRopeTables(100, false, tables);
  const ScratchContext context(QkNormRopeBackwardScratch(rows, heads, width, DType::kF64),
                               CpuDevice());
  const auto loss = [&] {
    QkNormRopeForward(*context, {.x = x.tensor(),
                                 .gain = gain.tensor(),
                                 .y = y.tensor(),
                                 .rstd = rstd.tensor(),
                                 .tables = tables});
    return Dot(dy, y);
  };
  loss();
  QkNormRopeBackward(*context, {.dy = dy.tensor(),
                                .x = x.tensor(),
                                .gain = gain.tensor(),
                                .rstd = rstd.tensor(),
                                .dx = dx.tensor(),
                                .dgain = dgain.tensor(),
                                .tables = tables});
  testing::CheckGradient("dx", x, dx, loss);
  testing::CheckGradient("dgain", gain, dgain, loss);
  Buffer over(dy);  // dx over dy
  QkNormRopeBackward(*context, {.dy = over.tensor(),
                                .x = x.tensor(),
                                .gain = gain.tensor(),
                                .rstd = rstd.tensor(),
                                .dx = over.tensor(),
                                .dgain = dgain.tensor(),
                                .tables = tables});
  EXPECT_TRUE(over.SameBits(dx));
}

TEST(RopeTables, HoldCosinesAndSinesRoundedOnRequest) {
  Buffer cosine(DType::kF32, {3, 2}), sine(DType::kF32, {3, 2});
  FillRopeTables(100, false, {cosine.tensor(), sine.tensor()});
  // Frequencies 1 and 1/10.
  testing::ExpectClose("cos", cosine,
                       {1, 1, std::cos(1.0), std::cos(0.1), std::cos(2.0), std::cos(0.2)},
                       {.relative = 6e-8});
  testing::ExpectClose("sin", sine,
                       {0, 0, std::sin(1.0), std::sin(0.1), std::sin(2.0), std::sin(0.2)},
                       {.relative = 6e-8});
  FillRopeTables(100, true, {cosine.tensor(), sine.tensor()});
  EXPECT_EQ(cosine.Get(2), static_cast<double>(static_cast<float>(bf16(std::cos(1.0f)))));
}

TEST(RopeDeathTest, OddHeadsAndBrokenWindowsAreRefused) {
  Buffer x(DType::kF32, {4, 1, 3}), gain(DType::kF32, {3}), rstd(DType::kF32, {4, 1});
  Buffer table(DType::kF32, {4, 1});
  const ScratchContext context(0);
  EXPECT_DEATH(QkNormRopeForward(*context, {.x = x.tensor(),
                                            .gain = gain.tensor(),
                                            .y = x.tensor(),
                                            .rstd = rstd.tensor(),
                                            .tables = {table.tensor(), table.tensor()}}),
               "head width 3 is odd");
}

}  // namespace
}  // namespace overtok

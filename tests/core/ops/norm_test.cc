#include "core/ops/norm.h"

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
  int64_t rows, width;
};
// One row, widths that no vector divides, more rows than one block of the gain's sum (32), and a
// width for each way in which devices divide a row.
const std::vector<Size> kSizes = {{1, 1},    {1, 64},    {5, 17},   {33, 48},  {130, 100},
                                  {65, 512}, {33, 1032}, {2, 2056}, {2, 4104}, {2, 8200}};

void FillX(Buffer& b) { FillNormal(b, 1, 2); }
void FillGain(Buffer& b) { FillUniform(b, 2, 0.5, 1.5); }
void FillResidual(Buffer& b) { FillNormal(b, 3, 1); }
void FillDy(Buffer& b) { FillNormal(b, 4, 1); }

TEST(RmsNorm, ForwardAgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    for (const bool with_residual : {false, true}) {
      const Shape shape = {s.rows, s.width};
      testing::CheckOp(
          {.name = "RMSNorm forward " + shape.ToString() + (with_residual ? " + residual" : ""),
           .operands = {{.name = "x", .shape = shape, .fill = FillX},
                        {.name = "gain",
                         .storage = Storage::kStatistic,
                         .shape = {s.width},
                         .fill = FillGain},
                        {.name = "residual", .shape = shape, .fill = FillResidual},
                        // f32: the sum of squares errs by width / lanes roundings at most, halved
                        // by the root; then three roundings. bf16: x rstd, the gain, their product
                        // (and the sum with the residual) are each rounded.
                        {.name = "y",
                         .role = Role::kOutput,
                         .shape = shape,
                         .value_units = 8,
                         .tensor_units = 2,
                         .bf16_value_units = 4,
                         .bf16_tensor_units = with_residual ? 2.0 : 0.0},
                        {.name = "rstd",
                         .role = Role::kOutput,
                         .storage = Storage::kStatistic,
                         .shape = {s.rows},
                         // 16 running sums of width / 16 terms each without AVX, whose
                         // roundings partly cancel; halved by the root.
                         .value_units = 8 + static_cast<double>(s.width) / 200,
                         .tensor_units = 0}},
           .run = [&](const Context& c, const std::vector<Tensor>& t) {
             RmsNormForward(c, {.x = t[0],
                                .gain = t[1],
                                .residual = with_residual ? t[2] : Tensor(),
                                .y = t[3],
                                .rstd = t[4]});
           }});
    }
  }
}

TEST(RmsNorm, BackwardAgreesAcrossStorageTypesAndThreads) {
  for (const Size& s : kSizes) {
    for (const bool accumulate : {false, true}) {
      const Shape shape = {s.rows, s.width};
      const Role role = accumulate ? Role::kInputOutput : Role::kOutput;
      testing::CheckOp(
          {.name = "RMSNorm backward " + shape.ToString(),
           .operands = {{.name = "dy", .shape = shape, .fill = FillDy},
                        {.name = "x", .shape = shape, .fill = FillX},
                        {.name = "gain",
                         .storage = Storage::kStatistic,
                         .shape = {s.width},
                         .fill = FillGain},
                        {.name = "rstd",
                         .storage = Storage::kStatistic,
                         .shape = {s.rows},
                         .fill = [](Buffer& b) { FillUniform(b, 5, 0.4, 0.6); }},
                        {.name = "dx",
                         .role = role,
                         .shape = shape,
                         .fill = FillResidual,
                         .value_units = 8,
                         .tensor_units = 16,
                         .bf16_value_units = 4,
                         .bf16_tensor_units = 2},
                        // Sums of up to 130 terms, in f32 blocks of 32; bf16 rounds x rstd in each.
                        {.name = "dgain",
                         .role = role,
                         .storage = Storage::kStatistic,
                         .shape = {s.width},
                         .fill = FillGain,
                         .value_units = 16,
                         .tensor_units = 32,
                         .bf16_value_units = 2,
                         .bf16_tensor_units = 2}},
           .run =
               [&](const Context& c, const std::vector<Tensor>& t) {
                 RmsNormBackward(c, {.dy = t[0],
                                     .x = t[1],
                                     .gain = t[2],
                                     .rstd = t[3],
                                     .dx = t[4],
                                     .dgain = t[5],
                                     .accumulate_dx = accumulate,
                                     .accumulate_dgain = accumulate});
               },
           .scratch = [&](DType act) { return RmsNormBackwardScratch(s.rows, s.width, act); }});
    }
  }
}

TEST(RmsNorm, MatchesTheFormula) {
  const int64_t rows = 3, width = 21;
  const double eps = 0.1;
  Buffer x(DType::kF64, {rows, width}), gain(DType::kF64, {width}), y(DType::kF64, {rows, width});
  Buffer residual(DType::kF64, {rows, width}), rstd(DType::kF64, {rows});
  FillX(x);
  FillGain(gain);
  FillResidual(residual);
  std::vector<double> expected, expected_rstd;
  for (int64_t t = 0; t < rows; ++t) {
    double sum = 0;
    for (int64_t i = 0; i < width; ++i) sum += x.Get(t * width + i) * x.Get(t * width + i);
    const double r = 1 / std::sqrt(sum / static_cast<double>(width) + eps);
    expected_rstd.push_back(r);
    for (int64_t i = 0; i < width; ++i)
      expected.push_back(residual.Get(t * width + i) + x.Get(t * width + i) * r * gain.Get(i));
  }
  const ScratchContext context(0, CpuDevice());
  RmsNormForward(*context, {.x = x.tensor(),
                            .gain = gain.tensor(),
                            .residual = residual.tensor(),
                            .y = residual.tensor(),  // the aliasing that is allowed
                            .rstd = rstd.tensor(),
                            .eps = eps});
  testing::ExpectClose("y", residual, expected, {.relative = 1e-14, .absolute = 1e-14});
  testing::ExpectClose("rstd", rstd, expected_rstd, {.relative = 1e-14});
}

TEST(RmsNorm, GradientMatchesDifferences) {
  const int64_t rows = 35, width = 5;
  Buffer x(DType::kF64, {rows, width}), gain(DType::kF64, {width}), y(DType::kF64, {rows, width});
  Buffer rstd(DType::kF64, {rows}), dy(DType::kF64, {rows, width});
  Buffer dx(DType::kF64, {rows, width}), dgain(DType::kF64, {width});
  FillX(x);
  FillGain(gain);
  FillDy(dy);
  const ScratchContext context(RmsNormBackwardScratch(rows, width, DType::kF64), CpuDevice());
  const auto loss = [&] {
    RmsNormForward(*context, {.x = x.tensor(),
                              .gain = gain.tensor(),
                              .residual = Tensor(),
                              .y = y.tensor(),
                              .rstd = rstd.tensor()});
    return Dot(dy, y);
  };
  loss();
  RmsNormBackward(*context, {.dy = dy.tensor(),
                             .x = x.tensor(),
                             .gain = gain.tensor(),
                             .rstd = rstd.tensor(),
                             .dx = dx.tensor(),
                             .dgain = dgain.tensor()});
  testing::CheckGradient("dx", x, dx, loss);
  testing::CheckGradient("dgain", gain, dgain, loss);
  // dx over dy.
  Buffer over(dy);
  RmsNormBackward(*context, {.dy = over.tensor(),
                             .x = x.tensor(),
                             .gain = gain.tensor(),
                             .rstd = rstd.tensor(),
                             .dx = over.tensor(),
                             .dgain = dgain.tensor()});
  EXPECT_TRUE(over.SameBits(dx));
}

// More blocks of rows than a device sums at a time (128). With dy = x = 1 / rstd = 1 every row adds
// 1 to the gain's gradient, so that a row left out or taken twice is seen.
TEST(RmsNorm, EveryOfManyRowsReachesTheGain) {
  const int64_t rows = 140 * 32 + 7;
  Buffer x(DType::kF32, {rows, 1}), gain(DType::kF32, {1}, {1}), rstd(DType::kF32, {rows});
  Buffer dx(DType::kF32, {rows, 1}), dgain(DType::kF32, {1}, {3});
  for (int64_t t = 0; t < rows; ++t) {
    x.Set(t, 1);
    rstd.Set(t, 1);
  }
  const ScratchContext context(RmsNormBackwardScratch(rows, 1, DType::kF32));
  RmsNormBackward(*context, {.dy = x.tensor(),
                             .x = x.tensor(),
                             .gain = gain.tensor(),
                             .rstd = rstd.tensor(),
                             .dx = dx.tensor(),
                             .dgain = dgain.tensor(),
                             .accumulate_dgain = true});
  EXPECT_EQ(dgain.Get(0), static_cast<double>(rows + 3));
}

TEST(RmsNorm, NoRowsGiveAZeroGainGradient) {
  Buffer x(DType::kF32, {0, 4}), gain(DType::kF32, {4}), dgain(DType::kF32, {4}),
      r(DType::kF32, {0});
  dgain.Poison();
  const ScratchContext context(0);
  RmsNormBackward(*context, {.dy = x.tensor(),
                             .x = x.tensor(),
                             .gain = gain.tensor(),
                             .rstd = r.tensor(),
                             .dx = x.tensor(),
                             .dgain = dgain.tensor()});
  testing::ExpectClose("dgain", dgain, {0, 0, 0, 0}, {});
}

}  // namespace
}  // namespace overtok

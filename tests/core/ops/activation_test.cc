#include "core/ops/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::Role;
using testing::ScratchContext;

void FillGate(Buffer& b) { FillNormal(b, 1, 3); }
void FillUp(Buffer& b) { FillNormal(b, 2, 1); }
void FillDy(Buffer& b) { FillNormal(b, 3, 1); }

const std::vector<Shape> kShapes = {{1, 1}, {1, 16}, {3, 17}, {7, 64}, {129, 131}};

TEST(SwiGlu, AgreesAcrossStorageTypesAndThreads) {
  for (const Shape& shape : kShapes) {
    testing::CheckOp(
        {.name = "swiglu forward " + shape.ToString(),
         .operands = {{.name = "gate", .shape = shape, .fill = FillGate},
                      {.name = "up", .shape = shape, .fill = FillUp},
                      // exp 2 ulp, sum, quotient, two products: below 6 roundings of 2^-24.
                      {.name = "y",
                       .role = Role::kOutput,
                       .shape = shape,
                       .value_units = 8,
                       .tensor_units = 0}},
         .run = [](const Context& c, const std::vector<Tensor>& t) {
           SwiGluForward(c, {t[0], t[1], t[2]});
         }});
    testing::CheckOp(
        {.name = "swiglu backward " + shape.ToString(),
         .operands = {{.name = "dy", .shape = shape, .fill = FillDy},
                      {.name = "gate", .shape = shape, .fill = FillGate},
                      {.name = "up", .shape = shape, .fill = FillUp},
                      // The slope s + g s (1 - s) cancels near g = -1.28: relative to the tensor.
                      {.name = "dgate", .role = Role::kOutput, .shape = shape, .value_units = 8},
                      {.name = "dup", .role = Role::kOutput, .shape = shape, .value_units = 8}},
         .run = [](const Context& c, const std::vector<Tensor>& t) {
           SwiGluBackward(c, {t[0], t[1], t[2], t[3], t[4]});
         }});
  }
}

TEST(SwiGlu, MatchesTheFormula) {
  const int64_t n = 100;
  Buffer gate(DType::kF64, {1, n}), up(DType::kF64, {1, n}), y(DType::kF64, {1, n});
  FillGate(gate);
  FillUp(up);
  const ScratchContext context(0, CpuDevice());
  SwiGluForward(*context, {gate.tensor(), up.tensor(), y.tensor()});
  std::vector<double> expected;
  for (int64_t i = 0; i < n; ++i)
    expected.push_back(gate.Get(i) / (1 + std::exp(-gate.Get(i))) * up.Get(i));
  testing::ExpectClose("y", y, expected, {.relative = 1e-15 * 8});  // a few roundings of 2^-53
}

TEST(SwiGlu, GradientMatchesDifferences) {
  const Shape shape = {3, 7};
  Buffer gate(DType::kF64, shape), up(DType::kF64, shape), y(DType::kF64, shape);
  Buffer dy(DType::kF64, shape), dgate(DType::kF64, shape), dup(DType::kF64, shape);
  FillGate(gate);
  FillUp(up);
  FillDy(dy);
  const ScratchContext context(0, CpuDevice());
  SwiGluBackward(*context, {dy.tensor(), gate.tensor(), up.tensor(), dgate.tensor(), dup.tensor()});
  const auto loss = [&] {
    SwiGluForward(*context, {gate.tensor(), up.tensor(), y.tensor()});
    return Dot(dy, y);
  };
  testing::CheckGradient("dgate", gate, dgate, loss);
  testing::CheckGradient("dup", up, dup, loss);
}

TEST(SwiGlu, BackwardMayOverwriteItsInputs) {
  const Shape shape = {5, 19};
  Buffer dy(DType::kF32, shape), gate(DType::kF32, shape), up(DType::kF32, shape);
  Buffer dgate(DType::kF32, shape), dup(DType::kF32, shape);
  FillGate(gate);
  FillUp(up);
  FillDy(dy);
  const ScratchContext context(0);
  SwiGluBackward(*context, {dy.tensor(), gate.tensor(), up.tensor(), dgate.tensor(), dup.tensor()});
  Buffer on_dy(dy), on_gate(gate), on_up(up);
  SwiGluBackward(*context,
                 {on_dy.tensor(), gate.tensor(), up.tensor(), on_dy.tensor(), dup.tensor()});
  EXPECT_TRUE(on_dy.SameBits(dgate));
  SwiGluBackward(*context,
                 {dy.tensor(), on_gate.tensor(), on_up.tensor(), on_gate.tensor(), on_up.tensor()});
  EXPECT_TRUE(on_gate.SameBits(dgate) && on_up.SameBits(dup));
}

TEST(SwiGlu, FarGatesSaturateAndNanStays) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    Buffer gate(dtype, {1, 4}, {-1e4, 1e4, nan, 0}), up(dtype, {1, 4}, {1, 1, 1, 1});
    Buffer y(dtype, {1, 4}), dgate(dtype, {1, 4}), dup(dtype, {1, 4});
    const ScratchContext context(0, dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice());
    SwiGluForward(*context, {gate.tensor(), up.tensor(), y.tensor()});
    SwiGluBackward(*context,
                   {up.tensor(), gate.tensor(), up.tensor(), dgate.tensor(), dup.tensor()});
    EXPECT_TRUE(std::abs(y.Get(0)) <= 1e-300) << y.Get(0);
    EXPECT_EQ(y.Get(1), gate.Get(1));
    EXPECT_TRUE(std::isnan(y.Get(2)) && std::isnan(dgate.Get(2)) && std::isnan(dup.Get(2)));
    EXPECT_EQ(y.Get(3), 0);
    EXPECT_EQ(dgate.Get(3), 0.5);
    EXPECT_EQ(dgate.Get(1), 1);
    EXPECT_TRUE(std::abs(dgate.Get(0)) <= 1e-300);
  }
}

}  // namespace
}  // namespace overtok

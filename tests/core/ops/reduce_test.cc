// Weighted sums against sums in double, of sizes below and above what a device's threads take at
// once.
#include "core/ops/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;

// Weights of which every third is 0, beside values that are NaN there.
void FillPair(Buffer& x, Buffer& w) {
  testing::FillNormal(x, 1, 3);
  testing::FillUniform(w, 2, 0.5, 2);
  for (int64_t i = 0; i < x.size(); i += 3) {
    x.Set(i, std::numeric_limits<double>::quiet_NaN());
    w.Set(i, 0);
  }
}

TEST(WeightedSum, AgreesWithSumsInDouble) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    const ScratchContext context(0, dtype == DType::kF64 ? CpuDevice() : testing::TestedDevice());
    for (const int64_t n : {int64_t{1}, int64_t{7}, int64_t{1024}, int64_t{3001}}) {
      Buffer x(dtype, {n}), w(dtype, {n}), out(DType::kF64, {1});
      FillPair(x, w);
      for (const int power : {0, 1, 2}) {  // 0: no x
        for (const bool accumulate : {false, true}) {
          double expected = accumulate ? 0.25 : 0, size = 1;
          for (int64_t i = 0; i < n; ++i) {
            if (w.Get(i) == 0) continue;
            const double term = w.Get(i) * (power == 0 ? 1 : std::pow(x.Get(i), power));
            expected += term;
            size += std::abs(term);
          }
          out.Poison();
          if (accumulate) out.Set(0, 0.25);
          WeightedSum(*context, {.x = power == 0 ? Tensor() : x.tensor(),
                                 .w = w.tensor(),
                                 .out = out.tensor(),
                                 .power = power == 0 ? 1 : power,
                                 .accumulate = accumulate});
          // Orders of up to 3001 additions in f64.
          EXPECT_TRUE(std::abs(out.Get(0) - expected) <= 1e-13 * size)
              << n << " terms, power " << power << ": " << out.Get(0) << " against " << expected;
          EXPECT_TRUE(out.GuardsIntact());
        }
      }
    }
  }
}

TEST(WeightedSum, NanWithAWeightStays) {
  const ScratchContext context(0);
  Buffer x(DType::kF32, {40}), w(DType::kF32, {40}), out(DType::kF64, {1});
  FillPair(x, w);
  w.Set(33, 1);
  WeightedSum(*context, {.x = x.tensor(), .w = w.tensor(), .out = out.tensor()});
  EXPECT_TRUE(std::isnan(out.Get(0)));
}

TEST(WeightedSum, NothingSumsToZero) {
  const ScratchContext context(0);
  Buffer w(DType::kF32, {0}), out(DType::kF64, {1}, {3});
  WeightedSum(
      *context,
      {.x = Tensor(), .w = w.tensor(), .out = out.tensor(), .power = 1, .accumulate = true});
  EXPECT_EQ(out.Get(0), 3);
  WeightedSum(*context, {.x = Tensor(), .w = w.tensor(), .out = out.tensor()});
  EXPECT_EQ(out.Get(0), 0);
}

}  // namespace
}  // namespace overtok

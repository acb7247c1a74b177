#include "core/ops/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/ops/kernels.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::Role;
using testing::ScratchContext;

// Below, at and above vector widths, and above what one thread takes.
const std::vector<int64_t> kSizes = {1, 3, 8, 16, 17, 33, 1000, 40001};

TEST(Elementwise, AddAgreesAcrossStorageTypesAndThreads) {
  for (const int64_t n : kSizes) {
    testing::CheckOp(
        {.name = "add " + std::to_string(n),
         .operands = {{.name = "x", .shape = {n}, .fill = [](Buffer& b) { FillNormal(b, 1, 1); }},
                      {.name = "y",
                       .role = Role::kInputOutput,
                       .shape = {n},
                       .fill = [](Buffer& b) { FillNormal(b, 2, 1); },
                       .value_units = 1,  // one rounding
                       .tensor_units = 0}},
         .run = [](const Context& c, const std::vector<Tensor>& t) {
           Add(c, {t[0], t[1]});
         }});
  }
}

TEST(Elementwise, FillWritesTheValueAndNothingElse) {
  for (const double value : {0.0, -0.0, 1.5}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (const int64_t n : kSizes) {
        const ScratchContext context(0);
        Buffer x(dtype, {n});
        x.Poison();
        Fill(*context, {x.tensor(), value});
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_TRUE(x.Get(i) == value && std::signbit(x.Get(i)) == std::signbit(value)) << i;
        }
        EXPECT_TRUE(x.GuardsIntact());
      }
    }
  }
}

// Every bf16 value, its neighbours' midpoints and NaN payloads: the vector rounding is
// core/bf16.h's.
TEST(Elementwise, CastToBf16RoundsBitForBitAsTheScalarTypeDoes) {
  std::vector<float> values;
  for (uint32_t high = 0; high < 65536; ++high)
    for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  const auto n = static_cast<int64_t>(values.size());
  std::vector<bf16> rounded(values.size());
  std::vector<float> back(values.size());
  const Tensor from(values.data(), {n}), to(rounded.data(), {n}), again(back.data(), {n});
  const testing::Lend lend({from, to, again});
  const ScratchContext context(0);
  Cast(*context, {from, to});
  int64_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) wrong += rounded[i].bits != bf16(values[i]).bits;
  EXPECT_EQ(wrong, 0);
  // And back, exactly.
  Cast(*context, {to, again});
  wrong = 0;
  for (size_t i = 0; i < values.size(); ++i)
    wrong += std::bit_cast<uint32_t>(back[i]) != static_cast<uint32_t>(rounded[i].bits) << 16;
  EXPECT_EQ(wrong, 0);
}

TEST(Elementwise, CastCopiesEqualTypesAndOddSizes) {
  for (const int64_t n : kSizes) {
    const ScratchContext context(0);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      if (dtype == DType::kF64 && !testing::TestsCpu()) continue;
      Buffer x(dtype, {n}), y(dtype, {n});
      FillNormal(x, 3, 1);
      Cast(*context, {x.tensor(), y.tensor()});
      EXPECT_TRUE(y.SameBits(x) && y.GuardsIntact());
    }
    Buffer x(DType::kF32, {n}), y(DType::kBF16, {n}), z(DType::kF32, {n});
    FillNormal(x, 4, 1);
    Cast(*context, {x.tensor(), y.tensor()});
    Cast(*context, {y.tensor(), z.tensor()});
    EXPECT_TRUE(y.GuardsIntact() && z.GuardsIntact());
    for (int64_t i = 0; i < n; ++i)
      ASSERT_TRUE(std::abs(z.Get(i) - x.Get(i)) <= std::ldexp(std::abs(x.Get(i)), -8)) << i;
  }
}

TEST(Elementwise, EmptyTensorsAreLeftAlone) {
  const ScratchContext context(0);
  Buffer x(DType::kF32, {0}), y(DType::kBF16, {0});
  Fill(*context, {x.tensor(), 1});
  Cast(*context, {x.tensor(), y.tensor()});
  Add(*context, {x.tensor(), x.tensor()});
}

TEST(ElementwiseDeathTest, ChecksNameWhatIsWrong) {
  const ScratchContext context(0);
  Buffer x(DType::kF32, {4}), y(DType::kF64, {4}), z(DType::kF32, {5});
  EXPECT_DEATH(Cast(*context, {x.tensor(), y.tensor()}), "no cast from f32 to f64");
  EXPECT_DEATH(Add(*context, {x.tensor(), z.tensor()}), "4 against 5");
  const Tensor head(z.tensor().data<float>(), {4}), tail(z.tensor().data<float>() + 1, {4});
  EXPECT_DEATH(Add(*context, {head, tail}), "overlap");
}

TEST(ElementwiseDeathTest, AMissingKernelIsNamed) {
  const Kernels none;
  const Context context(CpuDevice(), &none);
  Buffer x(DType::kF32, {4});
  EXPECT_DEATH(Fill(context, {x.tensor(), 0}), "this backend has no fill");
}

}  // namespace
}  // namespace overtok

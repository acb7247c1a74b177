// Rounding to TF32 bit by bit, as an op, and in products: against double with the rounded operands
// (the bound of an f32 product) and with the operands as they are (two roundings a term more).
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/ops/matmul.h"
#include "core/tf32.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;

float Float(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(ToTF32, RoundsToNearestTiesToEven) {
  struct Case {
    uint32_t from, to;
  };
  for (const auto& [from, to] : std::vector<Case>{
           {0x3f800000, 0x3f800000},  // 1
           {0x3f800fff, 0x3f800000},  // below half
           {0x3f801000, 0x3f800000},  // half: 1 is even
           {0x3f801001, 0x3f802000},  // above half
           {0x3f802fff, 0x3f802000},  // below half
           {0x3f803000, 0x3f804000},  // half: up to the even one
           {0x3fffefff, 0x3fffe000},  // the largest below 2 stays
           {0x3ffff000, 0x40000000},  // a carry into the exponent
           {0x00000000, 0x00000000},  // zeros keep their sign
           {0x00001000, 0x00000000},  // subnormal: half of the least one, to even
           {0x00001001, 0x00002000},  // to 2^-136
           {0x00003000, 0x00004000},  // a tie between subnormals
           {0x007fefff, 0x007fe000},  // the largest subnormal one
           {0x007ff000, 0x00800000},  // up to the least normal one
           {0x7f7fefff, 0x7f7fe000},  // the largest TF32
           {0x7f7ff000, 0x7f800000},  // overflow
           {0x7f7fffff, 0x7f800000},  // overflow of the largest float
           {0x7f800000, 0x7f800000},  // infinity
       }) {
    for (const uint32_t sign : {0u, 0x80000000u})
      EXPECT_EQ(Bits(ToTF32(Float(from | sign))), to | sign) << std::hex << (from | sign);
  }
}

TEST(ToTF32, NaNStaysNaN) {
  for (const uint32_t nan : {0x7fc00000u, 0x7f800001u, 0x7fffffffu, 0xff801fffu, 0xffc00001u}) {
    const uint32_t rounded = Bits(ToTF32(Float(nan)));
    EXPECT_TRUE(std::isnan(Float(rounded))) << std::hex << nan;
    EXPECT_EQ(rounded & 0x1fffu, 0u) << std::hex << nan;
    EXPECT_EQ(rounded >> 31, nan >> 31) << std::hex << nan;
  }
}

// Against the arithmetic of double: of the two neighbours the nearer one, of equally near ones the
// even one. Every exponent, a few thousand mantissas of each.
TEST(ToTF32, IsTheNearestNeighbour) {
  std::mt19937 generator(1);
  int64_t wrong = 0;
  for (uint32_t exponent = 0; exponent < 255; ++exponent) {
    for (int i = 0; i < 2000; ++i) {
      const uint32_t from = (exponent << 23) | (generator() & 0x7fffffu);
      const uint32_t low = from & ~0x1fffu, high = low + 0x2000u;
      const double value = static_cast<double>(Float(from));
      const double below = static_cast<double>(Float(low));
      // The neighbour of the largest is 2^128, which rounds to infinity.
      const double above =
          high == 0x7f800000u ? std::ldexp(1.0, 128) : static_cast<double>(Float(high));
      const bool even = (low & 0x2000u) == 0;
      const bool down = value - below < above - value || (value - below == above - value && even);
      if (Bits(ToTF32(Float(from))) != (down ? low : high) && ++wrong == 1)
        ADD_FAILURE() << std::hex << from;
      EXPECT_EQ(Bits(ToTF32(ToTF32(Float(from)))), Bits(ToTF32(Float(from))));
    }
  }
  EXPECT_EQ(wrong, 0);
}

// Sizes with and without whole packs, aligned and not; in place too.
TEST(RoundToTF32, RoundsEveryElement) {
  const ScratchContext context(0);
  for (const int64_t n : {1, 3, 4, 255, 1024, 5000}) {
    for (const auto start : {Buffer::Start::kOdd, Buffer::Start::kAligned}) {
      Buffer x(DType::kF32, {n}, start), y(DType::kF32, {n}, start);
      testing::FillNormal(x, 7, 1);
      x.Set(n - 1, std::numeric_limits<double>::infinity());
      const Buffer before(x);
      y.Poison();
      RoundToTF32(*context, {x.tensor(), y.tensor()});
      EXPECT_TRUE(x.SameBits(before) && x.GuardsIntact() && y.GuardsIntact());
      EXPECT_EQ(y.FirstUnwritten(), -1);
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_EQ(Bits(static_cast<float>(y.Get(i))), Bits(ToTF32(static_cast<float>(x.Get(i)))))
            << i << " of " << n;
      }
      RoundToTF32(*context, {x.tensor(), x.tensor()});
      EXPECT_TRUE(x.SameBits(y));
    }
  }
}

struct Case {
  int64_t batch, m, n, k;
  bool trans_a = false, trans_b = false, accumulate = false;
  float alpha = 1;
};

// With u = 2^-11 a rounded operand is x (1 + d), |d| <= u, a product of two off by at most
// 2 u + u^2 of it; then come the k + 2 roundings of an f32 sum as in matmul_test.cc, of 2^-23 each:
// tensor cores cut sums off instead of rounding them to nearest.
constexpr double kUnit = 0x1p-11, kOfATerm = 2 * kUnit + kUnit * kUnit;
double SumBound(int64_t k) { return static_cast<double>(k + 2) * 0x1p-23; }

void CheckProduct(const Case& c) {
  const std::string name = std::to_string(c.batch) + " x " + std::to_string(c.m) + " x " +
                           std::to_string(c.n) + " x " + std::to_string(c.k) +
                           (c.trans_a ? " T" : " N") + (c.trans_b ? "T" : "N");
  Buffer a(DType::kF32, c.trans_a ? Shape{c.batch, c.k, c.m} : Shape{c.batch, c.m, c.k});
  Buffer b(DType::kF32, c.trans_b ? Shape{c.batch, c.n, c.k} : Shape{c.batch, c.k, c.n});
  Buffer out(DType::kF32, {c.batch, c.m, c.n});
  testing::FillNormal(a, 1, 1);
  testing::FillNormal(b, 2, 1);
  if (c.accumulate) {
    testing::FillNormal(out, 3, 10);
  } else {
    out.Poison();
  }
  const Buffer a_before(a), b_before(b);
  const std::vector<double> old = out.Values();
  const ScratchContext context(MatmulScratch(a.size(), b.size()));
  Matmul(*context, {a.tensor(), b.tensor(), out.tensor(), c.trans_a, c.trans_b, c.accumulate,
                    c.alpha, /*tf32=*/true});
  EXPECT_TRUE(a.SameBits(a_before) && b.SameBits(b_before) && out.GuardsIntact() &&
              context.GuardsIntact())
      << name;
  const std::vector<double> x = a.Values(), y = b.Values();
  int64_t wrong = 0, apart = 0;
  for (int64_t e = 0; e < out.size(); ++e) {
    const int64_t index = e / (c.m * c.n), i = e / c.n % c.m, j = e % c.n;
    double plain = 0, rounded = 0, magnitude = 0;
    for (int64_t t = 0; t < c.k; ++t) {
      const int64_t of_a = index * c.m * c.k + (c.trans_a ? t * c.m + i : i * c.k + t);
      const int64_t of_b = index * c.k * c.n + (c.trans_b ? j * c.k + t : t * c.n + j);
      const double p = x[static_cast<size_t>(of_a)], q = y[static_cast<size_t>(of_b)];
      plain += p * q;
      rounded += static_cast<double>(ToTF32(static_cast<float>(p))) *
                 static_cast<double>(ToTF32(static_cast<float>(q)));
      magnitude += std::abs(p * q);
    }
    const auto alpha = static_cast<double>(c.alpha);
    const double before = c.accumulate ? old[static_cast<size_t>(e)] : 0;
    const double scale = std::abs(alpha) * magnitude;
    // The rounded terms' magnitudes exceed the plain ones' by at most kOfATerm.
    const double sums = SumBound(c.k) * ((1 + kOfATerm) * scale + std::abs(before)) +
                        0x1p-23 * std::abs(alpha * rounded + before);
    const double actual = out.Get(e);
    const bool near_rounded = std::abs(actual - (alpha * rounded + before)) <= sums;
    const bool near_plain = std::abs(actual - (alpha * plain + before)) <= sums + kOfATerm * scale;
    if (!(near_rounded && near_plain) && ++wrong == 1) {
      ADD_FAILURE() << name << " at " << e << ": " << actual << ", expected "
                    << alpha * rounded + before << " within " << sums;
    }
    apart += std::abs(rounded - plain) > 2 * sums ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0) << name;
  // The bound tells rounded operands from others: for most elements of a short sum.
  if (c.k >= 8 && c.k <= 100 && !c.accumulate) {
    EXPECT_GT(apart, out.size() / 2) << name;
  }
}

TEST(MatmulTF32, IsTheSumOfProductsOfRoundedOperands) {
  for (const auto& [batch, m, n, k] : std::vector<std::array<int64_t, 4>>{
           {1, 1, 1, 1}, {1, 17, 5, 65}, {3, 7, 9, 11}, {2, 64, 48, 130}, {2, 1, 5, 257}}) {
    for (int form = 0; form < 16; ++form) {
      CheckProduct({batch, m, n, k, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0,
                    (form & 8) != 0 ? -0.375f : 1.0f});
    }
  }
}

// One copy where b is a: the scratch of one is enough, and the result is that of two.
TEST(MatmulTF32, ATensorTimesItselfIsRoundedOnce) {
  Buffer x(DType::kF32, {2, 24, 40}), same(DType::kF32, {2, 24, 24}),
      apart(DType::kF32, {2, 24, 24});
  testing::FillNormal(x, 5, 1);
  const Buffer copy(x);
  {
    const ScratchContext context(MatmulScratch(x.size(), 0));
    Matmul(*context,
           {.a = x.tensor(), .b = x.tensor(), .c = same.tensor(), .trans_b = true, .tf32 = true});
    EXPECT_TRUE(context.GuardsIntact());
  }
  const ScratchContext context(MatmulScratch(x.size(), x.size()));
  Matmul(*context,
         {.a = x.tensor(), .b = copy.tensor(), .c = apart.tensor(), .trans_b = true, .tf32 = true});
  EXPECT_TRUE(same.SameBits(apart));
}

// bf16 operands are TF32 values already: nothing is rounded, no scratch is taken.
TEST(MatmulTF32, OtherOperandsAreNotTouched) {
  Buffer a(DType::kBF16, {33, 20}), b(DType::kBF16, {20, 12}), plain(DType::kF32, {33, 12}),
      asked(DType::kF32, {33, 12});
  testing::FillNormal(a, 1, 1);
  testing::FillNormal(b, 2, 1);
  const ScratchContext context(0);
  Matmul(*context, {.a = a.tensor(), .b = b.tensor(), .c = plain.tensor()});
  Matmul(*context, {.a = a.tensor(), .b = b.tensor(), .c = asked.tensor(), .tf32 = true});
  EXPECT_TRUE(asked.SameBits(plain));
}

TEST(MatmulTF32, NaNAndInfinityStay) {
  Buffer a(DType::kF32, {3, 4}, {1, 2, 3, 4, 0, 0, 0, 0, 1, 1, 1, 1}), b(DType::kF32, {4, 2}),
      c(DType::kF32, {3, 2});
  testing::FillUniform(b, 3, 1, 2);
  a.Set(4, std::numeric_limits<double>::quiet_NaN());
  a.Set(8, static_cast<double>(std::numeric_limits<float>::max()));  // rounds to infinity
  const ScratchContext context(MatmulScratch(a.size(), b.size()));
  Matmul(*context, {.a = a.tensor(), .b = b.tensor(), .c = c.tensor(), .tf32 = true});
  for (int64_t j = 0; j < 2; ++j) {
    EXPECT_TRUE(std::isfinite(c.Get(j)));
    EXPECT_TRUE(std::isnan(c.Get(2 + j)));
    EXPECT_TRUE(std::isinf(c.Get(4 + j)));
  }
}

TEST(MatmulTF32DeathTest, TooLittleScratchAborts) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Buffer a(DType::kF32, {3, 4}), b(DType::kF32, {4, 6}), c(DType::kF32, {3, 6});
  const ScratchContext context(MatmulScratch(a.size(), 0));
  EXPECT_DEATH(Matmul(*context, {.a = a.tensor(), .b = b.tensor(), .c = c.tensor(), .tf32 = true}),
               "more scratch than was planned");
}

}  // namespace
}  // namespace overtok

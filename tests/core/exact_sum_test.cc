// Exact sums against expansions of doubles without rounding error (Shewchuk), against extended
// precision where that is exact, and in cases made by hand; under permutations and groupings.
#include "core/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace overtok {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double SumOf(const std::vector<double>& values) {
  ExactSum sum;
  sum.Add(std::span<const double>(values));
  return sum.Round();
}

// Parts that do not overlap and whose sum is exact, smallest first; their sum rounded once.
double ExpansionSum(const std::vector<double>& values) {
  std::vector<double> parts;
  for (double x : values) {
    std::vector<double> next;
    for (double y : parts) {
      if (std::abs(x) < std::abs(y)) std::swap(x, y);
      const double high = x + y, low = y - (high - x);
      if (low != 0) next.push_back(low);
      x = high;
    }
    next.push_back(x);
    parts = next;
  }
  double high = 0, low = 0;
  while (!parts.empty() && low == 0) {
    const double x = high, y = parts.back();
    parts.pop_back();
    high = x + y;
    low = y - (high - x);
  }
  // A remainder of exactly half a unit is decided by what lies behind it.
  if (!parts.empty() && low != 0 && (low < 0) == (parts.back() < 0) && parts.back() != 0) {
    const double twice = 2 * low, moved = high + twice;
    if (twice == moved - high) high = moved;
  }
  return high;
}

std::vector<double> Random(uint64_t seed, int count, int lowest, int highest) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(lowest, highest);
  std::vector<double> values;
  for (int i = 0; i < count; ++i)
    values.push_back(std::ldexp(mantissa(generator), exponent(generator)));
  return values;
}

TEST(ExactSum, AgreesWithExpansions) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    for (const auto& [lowest, highest] :
         {std::pair{-2, 2}, {-40, 40}, {-1000, -900}, {-1074, 1000}, {900, 1000}}) {
      const std::vector<double> values = Random(seed, 200, lowest, highest);
      ASSERT_EQ(SumOf(values), ExpansionSum(values)) << seed << " " << lowest << " " << highest;
    }
  }
}

// 24-bit values over 30 binary orders: 1,000 of them have less than 64 bits.
TEST(ExactSum, AgreesWithExtendedPrecision) {
  static_assert(std::numeric_limits<long double>::digits >= 64);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<double> values = Random(seed, 1000, -15, 15);
    long double exact = 0;
    for (double& value : values) {
      value = static_cast<double>(static_cast<float>(value));
      value = std::nearbyint(std::ldexp(value, 38)) / std::ldexp(1.0, 38);
      exact += static_cast<long double>(value);
    }
    ASSERT_EQ(SumOf(values), static_cast<double>(exact)) << seed;
  }
}

TEST(ExactSum, OrderAndGroupingChangeNoBit) {
  std::vector<double> values = Random(3, 3000, -300, 300);
  const double expected = SumOf(values);
  std::mt19937_64 generator(5);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(values.begin(), values.end(), generator);
    EXPECT_EQ(SumOf(values), expected);
    // Over ranks: groups of their own, joined once as sums and once as plain integers.
    std::vector<ExactSum> groups(7);
    for (const double value : values) groups[generator() % groups.size()].Add(value);
    ExactSum joined;
    for (const ExactSum& group : groups) joined.Add(group);
    EXPECT_EQ(joined.Round(), expected);
    for (size_t g = 1; g < groups.size(); ++g) {
      for (size_t w = 0; w < ExactSum::kWords; ++w) groups[0].words()[w] += groups[g].words()[w];
    }
    EXPECT_EQ(groups[0].Round(), expected);
  }
}

TEST(ExactSum, NothingIsLostInExtremeRanges) {
  EXPECT_EQ(SumOf({}), 0);
  EXPECT_EQ(SumOf({kMax, 1, kTiny, -kMax, -1}), kTiny);
  EXPECT_EQ(SumOf({kMax, kMax, kMax, -kMax, -kMax, 3}), kMax);
  EXPECT_EQ(SumOf({kMax, kMax}), kInfinity);
  EXPECT_EQ(SumOf({-kMax, -kMax, -kMax}), -kInfinity);
  // Half a unit above the largest double rounds to infinity, a little less does not.
  const double half = std::ldexp(1, 970);
  EXPECT_EQ(SumOf({kMax, half}), kInfinity);
  EXPECT_EQ(SumOf({kMax, half, -kTiny}), kMax);
  EXPECT_EQ(SumOf({kTiny, kTiny, kTiny}), 3 * kTiny);
  EXPECT_EQ(SumOf({std::numeric_limits<double>::min(), -kTiny}),
            std::numeric_limits<double>::min() - kTiny);
  EXPECT_EQ(SumOf({-5, 2}), -3);
}

TEST(ExactSum, RoundsToNearestEven) {
  const double unit = 0x1p-52;
  EXPECT_EQ(SumOf({1, unit / 2}), 1);
  EXPECT_EQ(SumOf({1, unit / 2, kTiny}), 1 + unit);
  EXPECT_EQ(SumOf({1, unit, unit / 2}), 1 + 2 * unit);
  EXPECT_EQ(SumOf({1, unit, unit / 2, -kTiny}), 1 + unit);
  EXPECT_EQ(SumOf({-1, -unit / 2, -kTiny}), -1 - unit);
  EXPECT_EQ(SumOf({2 - unit, unit / 2}), 2);  // carries into the next power
}

TEST(ExactSum, ManyAddendsCarry) {
  ExactSum sum;
  const double value = -1 - 0x1p-52;
  for (int i = 0; i < 1 << 20; ++i) sum.Add(value);
  EXPECT_EQ(sum.Round(), std::ldexp(value, 20));
  // Doubled 40 times over: digits are carried on the way.
  for (int i = 0; i < 40; ++i) sum.Add(ExactSum(sum));
  EXPECT_EQ(sum.Round(), std::ldexp(value, 60));
}

TEST(ExactSum, WhatIsNotFiniteDecides) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(SumOf({1, nan, 2})));
  EXPECT_TRUE(std::isnan(SumOf({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(SumOf({kInfinity, nan})));
  EXPECT_EQ(SumOf({kInfinity, -kMax, kInfinity}), kInfinity);
  EXPECT_EQ(SumOf({1, -kInfinity}), -kInfinity);
  ExactSum sum;
  sum.Add(nan);
  sum.Clear();
  sum.Add(2);
  EXPECT_EQ(sum.Round(), 2);
}

}  // namespace
}  // namespace overtok

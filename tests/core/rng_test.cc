#include "core/rng.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <vector>

namespace overtok {
namespace {

TEST(Rng, PhiloxGivesThePublishedWords) {
  const std::array<uint32_t, 4> zero = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  EXPECT_EQ(Philox(0, 0, 0), zero);
  // Known answers of the Random123 distribution: all ones.
  const std::array<uint32_t, 4> ones = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
  EXPECT_EQ(Philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}), ones);
}

TEST(Rng, UniformStaysInsideTheOpenInterval) {
  EXPECT_GT(UniformOpen(0, 0), 0.0);
  EXPECT_LT(UniformOpen(~0U, ~0U), 1.0);
}

// The quantile inverts the distribution function, which the C library computes in another way.
TEST(Rng, TruncatedNormalInvertsItsDistribution) {
  const double low = 0.5 * std::erfc(3.0 / std::sqrt(2.0));
  for (const double u : {1e-9, 1e-4, 0.01, 0.074, 0.076, 0.3, 0.5, 0.7, 0.925, 0.999, 1 - 1e-9}) {
    const double z = TruncatedNormal(u);
    const double back = (0.5 * std::erfc(-z / std::sqrt(2.0)) - low) / (1 - 2 * low);
    EXPECT_TRUE(std::abs(back - u) <= 1e-13) << u;
    EXPECT_TRUE(std::abs(z) <= 3.0 + 1e-12) << u;
  }
}

TEST(Rng, FilledTensorsHaveTheMomentsAndAreFunctionsOfTheIndex) {
  const int64_t n = 1'000'000;
  std::vector<float> x(n), part(1000);
  FillTruncatedNormal(17, 0, 2.0F, Tensor(x.data(), {n}));
  double sum = 0, square = 0;
  for (const float v : x) {
    ASSERT_TRUE(std::abs(v) <= 6.0F);
    sum += v;
    square += static_cast<double>(v) * v;
  }
  // Five standard errors: 5 / sqrt(n), and 5 / sqrt(2 n) relative for the deviation.
  EXPECT_TRUE(std::abs(sum / n) <= 2 * 5e-3);
  EXPECT_TRUE(std::abs(std::sqrt(square / n) / (2 * 0.986578) - 1) <= 3.6e-3);

  FillTruncatedNormal(17, 12345, 2.0F, Tensor(part.data(), {1000}));
  for (int i = 0; i < 1000; ++i)
    ASSERT_EQ(part[static_cast<size_t>(i)], x[static_cast<size_t>(12345 + i)]);
  std::vector<float> serial(n);
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  FillTruncatedNormal(17, 0, 2.0F, Tensor(serial.data(), {n}));
  omp_set_num_threads(threads);
  EXPECT_EQ(serial, x);
}

}  // namespace
}  // namespace overtok

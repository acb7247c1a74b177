#include "core/io/stored_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace overtok {
namespace {

std::vector<float> Read(StoredType type, const void* stored, int64_t count) {
  // One byte further on: nothing promises alignment.
  std::vector<char> bytes(static_cast<size_t>(count * SizeOf(type) + 1));
  std::memcpy(bytes.data() + 1, stored, bytes.size() - 1);
  std::vector<float> out(static_cast<size_t>(count));
  StoredToF32(type, bytes.data() + 1, count, out.data());
  return out;
}

uint16_t WriteHalf(float value) {
  uint16_t half;
  F32ToStored(StoredType::kF16, &value, 1, reinterpret_cast<char*>(&half));
  return half;
}

TEST(StoredType, EveryHalfIsItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = Read(StoredType::kF16, &half, 1)[0];
    // By the definition of binary16, in double.
    const int exponent = (half >> 10) & 31, fraction = half & 1023;
    const double sign = (half & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_EQ(std::isnan(value), fraction != 0) << bits;
      EXPECT_EQ(std::isinf(value), fraction == 0) << bits;
      EXPECT_EQ(std::signbit(value), sign < 0) << bits;
      continue;
    }
    const double expected =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(static_cast<double>(value), sign * expected) << bits;
    ASSERT_EQ(std::signbit(value), sign < 0) << bits;
    ASSERT_EQ(WriteHalf(value), half) << "back again";
  }
}

TEST(StoredType, HalvesAreRoundedToNearestEven) {
  // Between each two neighbours: their middle goes to the even one, what is beside it to the
  // nearer.
  for (uint16_t half = 0; half < 0x7bff; ++half) {
    const auto next = static_cast<uint16_t>(half + 1);
    const float a = Read(StoredType::kF16, &half, 1)[0], b = Read(StoredType::kF16, &next, 1)[0];
    const float middle = a + (b - a) / 2;  // exact in f32
    ASSERT_EQ(WriteHalf(middle), (half & 1) == 0 ? half : next) << half;
    ASSERT_EQ(WriteHalf(std::nextafter(middle, a)), half);
    ASSERT_EQ(WriteHalf(std::nextafter(middle, b)), next);
  }
  EXPECT_EQ(WriteHalf(65519.0F), 0x7bff);
  EXPECT_EQ(WriteHalf(65520.0F), 0x7c00) << "half way to what would come next: infinity";
  EXPECT_EQ(WriteHalf(1e30F), 0x7c00);
  EXPECT_EQ(WriteHalf(-std::numeric_limits<float>::infinity()), 0xfc00);
  EXPECT_EQ(WriteHalf(std::numeric_limits<float>::quiet_NaN()) & 0x7fff, 0x7e00);
}

TEST(StoredType, OtherFloats) {
  const uint16_t brain[] = {0x3f80, 0xc040, 0x0001, 0x7f80};
  const std::vector<float> from_brain = Read(StoredType::kBF16, brain, 4);
  EXPECT_EQ(from_brain[0], 1.0F);
  EXPECT_EQ(from_brain[1], -3.0F);
  EXPECT_EQ(from_brain[2], std::bit_cast<float>(0x00010000U));
  EXPECT_TRUE(std::isinf(from_brain[3]));
  const double wide[] = {0.1, -1.0 / 3.0, 1e300};
  const std::vector<float> from_wide = Read(StoredType::kF64, wide, 3);
  EXPECT_EQ(from_wide[0], 0.1F);
  EXPECT_EQ(from_wide[1], -1.0F / 3.0F);
  EXPECT_TRUE(std::isinf(from_wide[2]));
  const float narrow[] = {0.1F, -0.0F};
  const std::vector<float> from_narrow = Read(StoredType::kF32, narrow, 2);
  EXPECT_EQ(std::memcmp(from_narrow.data(), narrow, sizeof(narrow)), 0);
}

TEST(StoredType, NamesAndSizes) {
  EXPECT_EQ(StoredTypeNamed("BF16"), StoredType::kBF16);
  EXPECT_EQ(StoredTypeNamed("F8_E4M3"), StoredType::kF8E4M3);
  EXPECT_EQ(StoredTypeNamed("bf16"), std::nullopt);
  EXPECT_EQ(SizeOf(StoredType::kF64), 8);
  EXPECT_EQ(SizeOf(StoredType::kBool), 1);
  EXPECT_FALSE(IsReadableFloat(StoredType::kI32));
  EXPECT_FALSE(IsReadableFloat(StoredType::kF8E5M2));
}

}  // namespace
}  // namespace overtok

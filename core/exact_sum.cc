#include "core/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace overtok {
namespace {

constexpr int kDigitBits = 32;
constexpr int64_t kBase = int64_t{1} << kDigitBits;
constexpr uint64_t kDigitMask = 0xffffffffU;
constexpr int kLowestExponent = -1074;  // of the smallest positive double
// Digits stay below 2^61 in magnitude until they are carried.
constexpr int64_t kMostAdded = int64_t{1} << 28;
constexpr int64_t kMostRanks = int64_t{1} << 20;

}  // namespace

void ExactSum::Add(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ffU);
  uint64_t mantissa = bits & 0xfffffffffffffU;
  const bool negative = (bits >> 63) != 0;
  if (exponent == 0x7ff) {
    const int special = mantissa != 0 ? kNaN : (negative ? kNegativeInfinite : kInfinite);
    ++words_[static_cast<size_t>(special)];
    return;
  }
  if (exponent != 0) mantissa |= uint64_t{1} << 52;
  const int position = exponent > 0 ? exponent - 1 : 0;
  const auto digit = static_cast<size_t>(position / kDigitBits);
  const int shift = position % kDigitBits;
  // The mantissa, shifted, in three digits: 53 + 31 bits.
  const uint64_t low = (mantissa & kDigitMask) << shift;
  const uint64_t high = ((mantissa >> kDigitBits) << shift) + (low >> kDigitBits);
  const int64_t sign = negative ? -1 : 1;
  words_[digit] += sign * static_cast<int64_t>(low & kDigitMask);
  words_[digit + 1] += sign * static_cast<int64_t>(high & kDigitMask);
  words_[digit + 2] += sign * static_cast<int64_t>(high >> kDigitBits);
  if (++added_ >= kMostAdded) Carry();
}

void ExactSum::Add(const ExactSum& other) {
  for (size_t i = 0; i < kWords; ++i) words_[i] += other.words_[i];
  added_ += other.added_ + 1;
  if (added_ >= kMostAdded) Carry();
}

void ExactSum::Carry() {
  for (size_t i = 0; i + 1 < kDigits; ++i) {
    const int64_t carry = words_[i] >> kDigitBits;  // towards minus infinity
    words_[i] -= carry * kBase;
    words_[i + 1] += carry;
  }
  added_ = 0;
}

std::span<int64_t> ExactSum::words() {
  Carry();
  added_ = kMostRanks;  // what a reduction can make of them
  return words_;
}

double ExactSum::Round() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (words_[kNaN] > 0 || (words_[kInfinite] > 0 && words_[kNegativeInfinite] > 0))
    return std::numeric_limits<double>::quiet_NaN();
  if (words_[kInfinite] > 0) return kInfinity;
  if (words_[kNegativeInfinite] > 0) return -kInfinity;

  ExactSum sum = *this;
  sum.Carry();
  std::array<int64_t, kWords>& words = sum.words_;
  const bool negative = words[kDigits - 1] < 0;
  if (negative) {
    for (size_t i = 0; i < kDigits; ++i) words[i] = -words[i];
    sum.Carry();
  }
  int top = kDigits - 1;
  while (top >= 0 && words[static_cast<size_t>(top)] == 0) --top;
  if (top < 0) return 0;
  const auto bit_at = [&](int position) {
    return (words[static_cast<size_t>(position / kDigitBits)] >> (position % kDigitBits) & 1) != 0;
  };
  // Position of the leading bit, of the last one that is kept, and of the half behind it.
  const int leading =
      top * kDigitBits + std::bit_width(static_cast<uint64_t>(words[static_cast<size_t>(top)])) - 1;
  const int last = leading > 52 ? leading - 52 : 0;
  // The topmost digit may hold more than its 32 bits: doubles end far below.
  if (leading > 1023 - kLowestExponent) return negative ? -kInfinity : kInfinity;
  uint64_t mantissa = 0;
  for (int position = leading; position >= last; --position)
    mantissa = mantissa << 1 | static_cast<uint64_t>(bit_at(position));
  if (last > 0 && bit_at(last - 1)) {
    bool beyond_half = false;
    for (int position = last - 2; position >= 0 && !beyond_half; --position)
      beyond_half = bit_at(position);
    if (beyond_half || (mantissa & 1) != 0) ++mantissa;
  }
  // Exact, or infinite where rounding left the range of doubles.
  const double magnitude = std::ldexp(static_cast<double>(mantissa), last + kLowestExponent);
  return negative ? -magnitude : magnitude;
}

}  // namespace overtok

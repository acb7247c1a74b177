// The arithmetic of exact sums (core/exact_sum.h), for the host and for kernels alike: which words
// of a sum a double adds to, the carries between them, and how they are rounded. Plain functions of
// words; how many may be added before a carry is their callers' to keep.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "core/host_device.h"

namespace overtok::exact {

// Word i < kDigits stands for multiples of 2^(32 i - 1074): together they span all finite doubles,
// and the topmost leaves room above the largest one for 2^46 of them. Behind the digits: how many
// NaN, infinities and negative infinities were added.
inline constexpr int kDigitBits = 32;
inline constexpr int kDigits = 67;
enum Special : int { kNaN = kDigits, kInfinite, kNegativeInfinite };
inline constexpr int kWords = kNegativeInfinite + 1;
inline constexpr int kLowestExponent = -1074;  // of the smallest positive double

// A double adds less than 2^32 to a digit: from [0, 2^32) on, so many of them keep digits below
// 2^61 in magnitude. A plain sum of carried words of so many ranks is below 2^53.
inline constexpr int64_t kMostAdded = int64_t{1} << 28;
inline constexpr int64_t kMostRanks = int64_t{1} << 20;

// The first word that a value adds to; finite ones add to the next two as well.
OT_HOST_DEVICE inline int WordOf(double value) {
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ffU);
  if (exponent == 0x7ff) {
    if ((bits & 0xfffffffffffffU) != 0) return kNaN;
    return (bits >> 63) != 0 ? kNegativeInfinite : kInfinite;
  }
  return (exponent > 0 ? exponent - 1 : 0) / kDigitBits;
}

// What a value adds to the words from WordOf(value) on: 1 and nothing else where it is not finite.
struct Pieces {
  int64_t piece[3];
};
OT_HOST_DEVICE inline Pieces PiecesOf(double value) {
  constexpr uint64_t kDigitMask = 0xffffffffU;
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7ffU);
  if (exponent == 0x7ff) return {{1, 0, 0}};
  uint64_t mantissa = bits & 0xfffffffffffffU;
  if (exponent != 0) mantissa |= uint64_t{1} << 52;
  const int shift = (exponent > 0 ? exponent - 1 : 0) % kDigitBits;
  // The mantissa, shifted, in three digits: 53 + 31 bits.
  const uint64_t low = (mantissa & kDigitMask) << shift;
  const uint64_t high = ((mantissa >> kDigitBits) << shift) + (low >> kDigitBits);
  const int64_t sign = (bits >> 63) != 0 ? -1 : 1;
  return {{sign * static_cast<int64_t>(low & kDigitMask),
           sign * static_cast<int64_t>(high & kDigitMask),
           sign * static_cast<int64_t>(high >> kDigitBits)}};
}

OT_HOST_DEVICE inline void AddTo(int64_t* words, double value) {
  const int word = WordOf(value);
  const Pieces pieces = PiecesOf(value);
  words[word] += pieces.piece[0];
  if (word >= kDigits) return;
  words[word + 1] += pieces.piece[1];
  words[word + 2] += pieces.piece[2];
}

// Brings all digits but the topmost into [0, 2^32): equal sums are equal words then.
OT_HOST_DEVICE inline void Carry(int64_t* words) {
  int64_t carry = 0;
  for (int i = 0; i + 1 < kDigits; ++i) {
    const int64_t digit = words[i] + carry;
    carry = digit >> kDigitBits;  // towards minus infinity
    words[i] = digit - carry * (int64_t{1} << kDigitBits);
  }
  words[kDigits - 1] += carry;
}

// The nearest double, ties to even; infinite where the sum is beyond the largest double; NaN where
// one was added or infinities of both signs. Carries, and leaves the words' magnitude behind.
OT_HOST_DEVICE inline double Round(int64_t* words) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (words[kNaN] > 0 || (words[kInfinite] > 0 && words[kNegativeInfinite] > 0))
    return std::numeric_limits<double>::quiet_NaN();
  if (words[kInfinite] > 0) return kInfinity;
  if (words[kNegativeInfinite] > 0) return -kInfinity;

  Carry(words);
  const bool negative = words[kDigits - 1] < 0;
  if (negative) {
    for (int i = 0; i < kDigits; ++i) words[i] = -words[i];
    Carry(words);
  }
  int top = kDigits - 1;
  while (top >= 0 && words[top] == 0) --top;
  if (top < 0) return 0;
  // The topmost digit begins beyond the largest double; the others have 32 bits.
  if (top == kDigits - 1) return negative ? -kInfinity : kInfinity;
  int leading = top * kDigitBits;  // position of the leading bit
  for (int64_t rest = words[top] >> 1; rest != 0; rest >>= 1) ++leading;
  if (leading > 1023 - kLowestExponent) return negative ? -kInfinity : kInfinity;

  // From the last bit that is kept on: 53 bits or fewer, nothing above.
  const int last = leading > 52 ? leading - 52 : 0;
  const int digit = last / kDigitBits, shift = last % kDigitBits;
  const auto at = [words](int i) { return static_cast<uint64_t>(words[i]); };
  uint64_t mantissa = (at(digit) | at(digit + 1) << kDigitBits) >> shift;
  if (shift > 0) mantissa |= at(digit + 2) << (2 * kDigitBits - shift);
  if (last > 0) {
    const int half = last - 1, below = half % kDigitBits;
    const uint64_t rest = at(half / kDigitBits);
    if ((rest >> below & 1) != 0) {
      bool beyond_half = (rest & ((uint64_t{1} << below) - 1)) != 0;
      for (int i = 0; i < half / kDigitBits && !beyond_half; ++i) beyond_half = words[i] != 0;
      if (beyond_half || (mantissa & 1) != 0) ++mantissa;
    }
  }
  // Bit 52, where it is set, adds 1 to the exponent; so does what rounding carries, up to infinity.
  const uint64_t bits = (static_cast<uint64_t>(last) << 52) + mantissa;
  return std::bit_cast<double>(bits | static_cast<uint64_t>(negative) << 63);
}

}  // namespace overtok::exact

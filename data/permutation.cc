#include "data/permutation.h"

#include <Random123/philox.h>

#include <bit>

#include "core/check.h"

namespace overtok {
namespace {

// Twice the rounds that make a random function's network a pseudorandom permutation: small domains
// need the margin, and a window costs microseconds next to the reading of it.
constexpr uint32_t kRounds = 8;
// At least 8 bits: over fewer, halves of 1 to 3 bits reach only a few of all permutations.
constexpr int kLeastBits = 8;

}  // namespace

uint64_t RandomWord(uint64_t seed, RandomPurpose purpose, uint64_t stream, uint64_t index) {
  const r123::Philox4x32::key_type key = {
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)}};
  // 56 bits of stream and 64 of index share the counter with the purpose.
  OT_CHECK(stream >> 56 == 0) << "stream " << stream;
  const r123::Philox4x32::ctr_type counter = {
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32),
       static_cast<uint32_t>(stream),
       static_cast<uint32_t>(stream >> 32) | static_cast<uint32_t>(purpose) << 24}};
  const r123::Philox4x32::ctr_type word = r123::Philox4x32()(counter, key);
  return static_cast<uint64_t>(word[0]) | static_cast<uint64_t>(word[1]) << 32;
}

int64_t FeistelPermutation(uint64_t seed, RandomPurpose purpose, uint64_t stream, int64_t n,
                           int64_t i) {
  OT_CHECK(n >= 1 && i >= 0 && i < n) << i << " of " << n;
  int bits = std::bit_width(static_cast<uint64_t>(n - 1));
  bits = bits < kLeastBits ? kLeastBits : bits + bits % 2;
  const int half = bits / 2;
  OT_CHECK_LE(half, 28);  // leaves room for the round beside a half in the index
  const uint64_t mask = (uint64_t{1} << half) - 1;
  uint64_t x = static_cast<uint64_t>(i);
  do {
    uint64_t left = x >> half, right = x & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t word = RandomWord(seed, purpose, stream, right | round << 56);
      const uint64_t next = left ^ (word & mask);
      left = right;
      right = next;
    }
    x = left << half | right;
  } while (x >= static_cast<uint64_t>(n));
  return static_cast<int64_t>(x);
}

}  // namespace overtok

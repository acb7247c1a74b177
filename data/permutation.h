// Keyed permutations of [0, n) with random access: a Feistel network over the next power of four,
// walked along its cycle until it falls back into [0, n). Round functions are Philox4x32-10, so
// every value is a pure function of (seed, purpose, stream, index).
#pragma once

#include <cstdint>

namespace overtok {

// What random words are for; keeps the streams of one seed apart.
enum class RandomPurpose : uint32_t { kMultiplier, kOffset, kBlock, kWindows, kPass };

// Word number `index` of the stream.
uint64_t RandomWord(uint64_t seed, RandomPurpose purpose, uint64_t stream, uint64_t index);

// Image of i in [0, n) under the permutation that (seed, purpose, stream) names. n >= 1.
int64_t FeistelPermutation(uint64_t seed, RandomPurpose purpose, uint64_t stream, int64_t n,
                           int64_t i);

}  // namespace overtok

// Stable radix sort of 64-bit words by their upper halves: what turns scattered rows into runs of
// equal rows on a device. Eight bits a pass, as many passes as the largest upper half needs, three
// launches each: how often every digit comes in every tile; the places of those counts; the words
// to their places. Integers alone: the result depends on nothing but the words.
//
// Bytes: 24 n a pass (read, read, written) beside the counts, n / 2. Three passes bring ids up to
// 2^24.
#pragma once

#include <cstdint>

#include "core/cuda/kernel.h"

namespace overtok::OT_BACKEND {

inline constexpr int kSortDigits = 256;
inline constexpr int64_t kSortTile = 2048;  // words of one block

// Elements of `counts`: one for each digit of each tile, one for each digit.
constexpr int64_t RadixSortCounts(int64_t n) {
  return kSortDigits * ((n + kSortTile - 1) / kSortTile + 1);
}

// Sorts the n words of `a`, whose upper halves are at most `largest`, leaving equal ones in their
// order; n is below 2^32. `b` is room for as many, `counts` for RadixSortCounts(n). All are device
// memory. Returns the array that will hold the result: `a` or `b`.
const uint64_t* RadixSort(const Context& context, uint64_t* a, uint64_t* b, unsigned* counts,
                          int64_t n, uint32_t largest);

}  // namespace overtok::OT_BACKEND

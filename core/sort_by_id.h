// Radix sort of (id, position) pairs: what turns scattered rows into runs of equal rows.
#pragma once

#include <cstdint>

namespace overtok {

// Sorts n words by their upper 32 bits, 11 at a time, leaving equal ids in their order. `a` holds
// the words, `b` is room for as many. Returns the array that holds the result: `a` or `b`.
const uint64_t* SortById(uint64_t* a, uint64_t* b, int64_t n);

}  // namespace overtok

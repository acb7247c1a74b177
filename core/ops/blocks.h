// The fixed blocks over which ops sum: a partial per block, then the partials in order. Their size
// is a constant and not a share of the threads, so that no sum depends on the thread count.
#pragma once

#include <cstdint>

namespace overtok {

// Rows, for gradients of gains.
inline constexpr int64_t kBlockRows = 32;
inline int64_t RowBlocks(int64_t rows) { return (rows + kBlockRows - 1) / kBlockRows; }

// Elements, for norms of whole tensors.
inline constexpr int64_t kBlockElements = 16384;
inline int64_t ElementBlocks(int64_t elements) {
  return (elements + kBlockElements - 1) / kBlockElements;
}
// The same of sums within one op on a device with many small multiprocessors.
inline constexpr int64_t kPassBlockElements = 4096;
// Partial sums per block at most: |w|^2, <w, u> and |u|^2.
inline constexpr int64_t kBlockSums = 3;

}  // namespace overtok

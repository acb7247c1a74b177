// What the optimizer passes share: the clip factor, and sums over fixed blocks of elements.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/cpu/parallel.h"
#include "core/ops/blocks.h"
#include "core/ops/optimizer.h"

namespace overtok::cpu {

// A norm that is not finite gives a factor that is not: the guard before the update reports it, and
// nothing here hides it.
inline double ClipFactor(const Clip& clip) {
  if (clip.max_norm == 0) return 1;
  const double norm = std::sqrt(clip.norm_squared.data<double>()[0]);
  return norm <= clip.max_norm ? 1 : clip.max_norm / norm;
}

// Whether a pass is to write nothing (Clip::halted).
inline bool IsHalted(const Tensor& halted) {
  return halted.defined() && halted.data<uint32_t>()[0] != 0;
}

// Per block of elements, `kBlockSums` partial sums: a row of a tensor of sums, or in scratch.
struct BlockSums {
  double value[kBlockSums] = {};
};
static_assert(sizeof(BlockSums) == kBlockSums * sizeof(double));

// body(begin, end, sums) for each block of [0, n), in parallel; sums of block b go to partial[b].
template <class Body>
void SumBlocks(int64_t n, BlockSums* partial, const Body& body) {
  ParallelFor(ElementBlocks(n), 1, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      BlockSums sums;
      body(b * kBlockElements, std::min(n, (b + 1) * kBlockElements), sums);
      partial[b] = sums;
    }
  });
}

// The same, and returns the sums over blocks in order.
template <class Body>
BlockSums SumOverBlocks(int64_t n, void* scratch, const Body& body) {
  auto* partial = static_cast<BlockSums*>(scratch);
  const int64_t blocks = ElementBlocks(n);
  SumBlocks(n, partial, body);
  BlockSums total;
  for (int64_t b = 0; b < blocks; ++b)
    for (int64_t k = 0; k < kBlockSums; ++k) total.value[k] += partial[b].value[k];
  return total;
}

}  // namespace overtok::cpu

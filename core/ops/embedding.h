// Row lookup and its gradient. Ids are checked on the host when a batch is made (data/), not here.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// An id that names no row: its output is zero and its gradient goes nowhere.
inline constexpr uint32_t kNoRow = 0xffffffff;

// y[t] = scale * table[ids[t]]. ids: [T] u32, below V or kNoRow; table: [V, d] f32 or bf16 (f64);
// y: [T, d] act. Rows are rounded to y's dtype once.
struct EmbeddingForwardArgs {
  Tensor ids, table, y;
  double scale = 1;
};
void EmbeddingForward(const Context& context, const EmbeddingForwardArgs& args);

// dtable[ids[t]] += scale * dy[t]: [V, d] f32 (f64). Rows that no id names are not touched (the
// caller zeroes them, or accumulates). Positions are sorted by id and each row's sum runs over its
// positions in ascending order: no atomics, independent of the thread count.
struct EmbeddingBackwardArgs {
  Tensor ids, dy, dtable;
  double scale = 1;
};
void EmbeddingBackward(const Context& context, const EmbeddingBackwardArgs& args);
int64_t EmbeddingBackwardScratch(int64_t tokens);

}  // namespace overtok

// Sums of rows that several ranks contribute to, each rank to some of them: the tree of
// core/gradient_sum.h where leaves may be missing. No dense tensor of any rank's rows is made.
#pragma once

#include <cstdint>
#include <span>

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// Letters: N contributions, U rows, w width. Contributions lie part by part: part p has rows
// [part_begin[p], part_begin[p + 1]) of `contributions`, and each of its rows goes to another row
// of `out`. Parts are `leaves` to a tree: part p is leaf p mod leaves of tree p / leaves.
//   out[u] = (tree 0 of u + tree 1 of u) + ...
// where a tree over its leaves joins aligned powers of two, the rest from the smallest up, as
// OrderedSum's kTree does, and a missing leaf counts as zeros.
struct RowTreeSumArgs {
  Tensor contributions;  // [N, w] f32
  // [N] u64, sorted: the lower 32 bits are a row of `contributions`. Those of out[u] are entries
  // [starts[u], starts[u + 1]), at least one, the lower bits ascending.
  Tensor order;
  Tensor starts;                        // [U + 1] u32
  std::span<const int64_t> part_begin;  // parts + 1
  int64_t leaves = 1;                   // divides the number of parts
  Tensor out;                           // [U, w] f32
};
void RowTreeSum(const Context& context, const RowTreeSumArgs& args);

}  // namespace overtok

#include "core/ops/embedding.h"

#include "core/ops/check_args.h"

namespace overtok {
namespace {

// rows: [T, d] act; table: [V, d].
void CheckTable(const Tensor& ids, const Tensor& rows, const Tensor& table) {
  OT_CHECK_ACT(rows);
  OT_CHECK_DTYPE(ids, DType::kU32);
  OT_CHECK_EQ(table.rank(), 2);
  OT_CHECK_SHAPE(rows, {ids.elements(), table.dim(1)});
  OT_CHECK_APART(rows, table);
}

}  // namespace

void EmbeddingForward(const Context& context, const EmbeddingForwardArgs& args) {
  CheckTable(args.ids, args.y, args.table);
  if (args.table.dtype() != DType::kBF16 || args.y.dtype() == DType::kF64) {
    OT_CHECK_DTYPE(args.table, internal::StatisticType(args.y.dtype()));
  }
  if (args.y.elements() == 0) return;
  internal::Call(context.kernels().embedding_forward, "embedding forward", context, args);
}

void EmbeddingBackward(const Context& context, const EmbeddingBackwardArgs& args) {
  CheckTable(args.ids, args.dy, args.dtable);
  OT_CHECK_DTYPE(args.dtable, internal::StatisticType(args.dy.dtype()));
  OT_CHECK_LT(args.ids.elements(), int64_t{1} << 32) << "positions are sorted as 32-bit numbers";
  if (args.dy.elements() == 0) return;
  internal::Call(context.kernels().embedding_backward, "embedding backward", context, args);
}

// Two arrays of (id, position) pairs, for a sort that is not in place. Beside them the counts of a
// device's sort (core/cuda/radix_sort.h): 256 digits of every 2,048 pairs and of all.
int64_t EmbeddingBackwardScratch(int64_t tokens) {
  return 2 * tokens * 8 + ((tokens + 2047) / 2048 + 1) * 256 * 4;
}

}  // namespace overtok

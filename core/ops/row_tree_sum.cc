#include "core/ops/row_tree_sum.h"

#include "core/ops/check_args.h"

namespace overtok {

void RowTreeSum(const Context& context, const RowTreeSumArgs& args) {
  OT_CHECK_DTYPE(args.contributions, DType::kF32);
  OT_CHECK_DTYPE(args.out, DType::kF32);
  OT_CHECK_EQ(args.out.rank(), 2);
  OT_CHECK_EQ(args.contributions.rank(), 2);
  OT_CHECK_EQ(args.contributions.dim(1), args.out.dim(1));
  OT_CHECK_DTYPE(args.order, DType::kU64);
  OT_CHECK_SHAPE(args.order, {args.contributions.dim(0)});
  OT_CHECK_DTYPE(args.starts, DType::kU32);
  OT_CHECK_SHAPE(args.starts, {args.out.dim(0) + 1});
  OT_CHECK_GE(args.leaves, 1);
  OT_CHECK_GE(args.part_begin.size(), 2U);
  OT_CHECK_EQ(static_cast<int64_t>(args.part_begin.size() - 1) % args.leaves, 0);
  OT_CHECK_EQ(args.part_begin.front(), 0);
  OT_CHECK_EQ(args.part_begin.back(), args.contributions.dim(0));
  OT_CHECK_APART(args.contributions, args.out);
  if (args.out.elements() == 0) return;
  internal::Call(context.kernels().row_tree_sum, "sum of ranks' rows", context, args);
}

}  // namespace overtok

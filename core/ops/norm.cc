#include "core/ops/norm.h"

#include "core/ops/blocks.h"
#include "core/ops/check_args.h"

namespace overtok {

void RmsNormForward(const Context& context, const RmsNormForwardArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_EQ(args.x.rank(), 2);
  const DType statistic = internal::StatisticType(args.x.dtype());
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  OT_CHECK_DTYPE(args.y, args.x.dtype());
  OT_CHECK_SHAPE(args.y, {rows, width});
  OT_CHECK_DTYPE(args.gain, statistic);
  OT_CHECK_SHAPE(args.gain, {width});
  OT_CHECK_DTYPE(args.rstd, statistic);
  OT_CHECK_SHAPE(args.rstd, {rows});
  OT_CHECK_APART(args.y, args.x);
  if (args.residual.defined()) {
    OT_CHECK_DTYPE(args.residual, args.x.dtype());
    OT_CHECK_SHAPE(args.residual, {rows, width});
    OT_CHECK_SAME_OR_APART(args.y, args.residual);
  }
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().rms_norm_forward, "RMSNorm forward", context, args);
}

void RmsNormBackward(const Context& context, const RmsNormBackwardArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_EQ(args.x.rank(), 2);
  const DType statistic = internal::StatisticType(args.x.dtype());
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  for (const Tensor& tensor : {args.dy, args.dx}) {
    OT_CHECK_DTYPE(tensor, args.x.dtype());
    OT_CHECK_SHAPE(tensor, {rows, width});
  }
  for (const Tensor& tensor : {args.gain, args.dgain}) {
    OT_CHECK_DTYPE(tensor, statistic);
    OT_CHECK_SHAPE(tensor, {width});
  }
  OT_CHECK_DTYPE(args.rstd, statistic);
  OT_CHECK_SHAPE(args.rstd, {rows});
  OT_CHECK_APART(args.dx, args.x);
  if (args.accumulate_dx) {
    OT_CHECK_APART(args.dx, args.dy);
  } else {
    OT_CHECK_SAME_OR_APART(args.dx, args.dy);
  }
  OT_CHECK_APART(args.dgain, args.gain);
  if (args.x.elements() == 0) {
    // No rows: a sum of nothing.
    if (!args.accumulate_dgain && width > 0) Fill(context, {.x = args.dgain, .value = 0});
    return;
  }
  internal::Call(context.kernels().rms_norm_backward, "RMSNorm backward", context, args);
}

int64_t RmsNormBackwardScratch(int64_t rows, int64_t width, DType dtype) {
  return RowBlocks(rows) * width * SizeOf(internal::StatisticType(dtype));
}

}  // namespace overtok

#include "core/ops/softmax_xent.h"

#include "core/ops/check_args.h"

namespace overtok {

void SoftmaxXent(const Context& context, const SoftmaxXentArgs& args) {
  OT_CHECK_EQ(args.logits.rank(), 2);
  const DType statistic = args.logits.dtype();
  OT_CHECK(statistic == DType::kF32 || statistic == DType::kF64)
      << "logits are " << NameOf(statistic) << ", expected f32 or f64";
  const int64_t rows = args.logits.dim(0), width = args.logits.dim(1);
  OT_CHECK_DTYPE(args.targets, DType::kU32);
  OT_CHECK_SHAPE(args.targets, {rows});
  for (const Tensor& tensor : {args.weight, args.loss, args.lse}) {
    OT_CHECK_DTYPE(tensor, statistic);
    OT_CHECK_SHAPE(tensor, {rows});
    OT_CHECK_APART(tensor, args.logits);
  }
  if (args.bias.defined()) {
    OT_CHECK_DTYPE(args.bias, statistic);
    OT_CHECK_SHAPE(args.bias, {width});
    OT_CHECK_APART(args.bias, args.logits);
  }
  OT_CHECK(args.focal_gamma >= 0) << "focal_gamma " << args.focal_gamma;
  if (args.dlogits.defined()) {
    OT_CHECK_SHAPE(args.dlogits, {rows, width});
    OT_CHECK(args.dlogits.dtype() == statistic ||
             (statistic == DType::kF32 && args.dlogits.dtype() == DType::kBF16))
        << "gradient is " << NameOf(args.dlogits.dtype()) << " for logits of " << NameOf(statistic);
    OT_CHECK_SAME_OR_APART(args.dlogits, args.logits);
  }
  if (rows == 0) return;
  OT_CHECK_GE(width, 1) << "rows without a class have no loss";
  internal::Call(context.kernels().softmax_xent, "softmax cross-entropy", context, args);
}

}  // namespace overtok

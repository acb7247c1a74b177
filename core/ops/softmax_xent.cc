#include "core/ops/softmax_xent.h"

#include "core/ops/check_args.h"

namespace overtok {

namespace {

void CheckLogits(const Tensor& logits, const Tensor& targets, const Tensor& bias) {
  OT_CHECK_EQ(logits.rank(), 2);
  OT_CHECK(logits.dtype() == DType::kF32 || logits.dtype() == DType::kF64)
      << "logits are " << NameOf(logits.dtype()) << ", expected f32 or f64";
  OT_CHECK_DTYPE(targets, DType::kU32);
  OT_CHECK_SHAPE(targets, {logits.dim(0)});
  if (bias.defined()) {
    OT_CHECK_DTYPE(bias, logits.dtype());
    OT_CHECK_SHAPE(bias, {logits.dim(1)});
    OT_CHECK_APART(bias, logits);
  }
}

// What the fused op and the second visit share.
template <class Args>
void CheckLoss(const Args& args) {
  CheckLogits(args.logits, args.targets, args.bias);
  const DType statistic = args.logits.dtype();
  const int64_t rows = args.logits.dim(0), width = args.logits.dim(1);
  for (const Tensor& tensor : {args.weight, args.loss, args.lse}) {
    OT_CHECK_DTYPE(tensor, statistic);
    OT_CHECK_SHAPE(tensor, {rows});
    OT_CHECK_APART(tensor, args.logits);
  }
  OT_CHECK(args.focal_gamma >= 0) << "focal_gamma " << args.focal_gamma;
  if (args.dlogits.defined()) {
    OT_CHECK_SHAPE(args.dlogits, {rows, width});
    OT_CHECK(args.dlogits.dtype() == statistic ||
             (statistic == DType::kF32 && args.dlogits.dtype() == DType::kBF16))
        << "gradient is " << NameOf(args.dlogits.dtype()) << " for logits of " << NameOf(statistic);
    OT_CHECK_SAME_OR_APART(args.dlogits, args.logits);
  }
}

}  // namespace

void SoftmaxXent(const Context& context, const SoftmaxXentArgs& args) {
  CheckLoss(args);
  if (args.logits.dim(0) == 0) return;
  OT_CHECK_GE(args.logits.dim(1), 1) << "rows without a class have no loss";
  internal::Call(context.kernels().softmax_xent, "softmax cross-entropy", context, args);
}

void SoftmaxShardStats(const Context& context, const SoftmaxShardStatsArgs& args) {
  CheckLogits(args.logits, args.targets, args.bias);
  OT_CHECK_DTYPE(args.stats, DType::kF64);
  OT_CHECK_SHAPE(args.stats, {args.logits.dim(0), 3});
  OT_CHECK_APART(args.stats, args.logits);
  if (args.logits.dim(0) == 0) return;
  internal::Call(context.kernels().softmax_shard_stats, "statistics of a divided softmax", context,
                 args);
}

void SoftmaxXentShard(const Context& context, const SoftmaxXentShardArgs& args) {
  CheckLoss(args);
  OT_CHECK_DTYPE(args.all_stats, DType::kF64);
  OT_CHECK_EQ(args.all_stats.rank(), 3);
  OT_CHECK_GE(args.all_stats.dim(0), 1);
  OT_CHECK_SHAPE(args.all_stats, {args.all_stats.dim(0), args.logits.dim(0), 3});
  OT_CHECK_APART(args.all_stats, args.logits);
  if (args.logits.dim(0) == 0) return;
  internal::Call(context.kernels().softmax_xent_shard, "divided softmax cross-entropy", context,
                 args);
}

}  // namespace overtok

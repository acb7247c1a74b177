// Entry points of attention: they check and call the kernel of the context's table.
#include "core/ops/attention.h"

#include <algorithm>

#include "core/cpu/attention_layout.h"
#include "core/cuda/packed_layout.h"
#include "core/ops/check_args.h"

namespace overtok {
namespace {

// What both directions share; returns false when there is nothing to do.
bool CheckAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& segments,
                    const Tensor& o, const Tensor& lse) {
  OT_CHECK_ACT(q);
  OT_CHECK(q.rank() == 3 && k.rank() == 3 && segments.rank() == 2)
      << "attention of q " << q.shape().ToString() << ", k " << k.shape().ToString()
      << ", segments " << segments.shape().ToString();
  const int64_t batch = segments.dim(0), length = segments.dim(1);
  const int64_t heads = q.dim(1), kv_heads = k.dim(1), width = q.dim(2);
  OT_CHECK(kv_heads > 0 && heads % kv_heads == 0)
      << heads << " query heads over " << kv_heads << " key/value heads";
  OT_CHECK_SHAPE(q, {batch * length, heads, width});
  OT_CHECK_SHAPE(k, {batch * length, kv_heads, width});
  OT_CHECK_SHAPE(v, {batch * length, kv_heads, width});
  OT_CHECK_SHAPE(o, {batch * length, heads, width});
  OT_CHECK_SHAPE(lse, {batch, heads, length});
  OT_CHECK_DTYPE(k, q.dtype());
  OT_CHECK_DTYPE(v, q.dtype());
  OT_CHECK_DTYPE(o, q.dtype());
  OT_CHECK_DTYPE(lse, internal::StatisticType(q.dtype()));
  OT_CHECK_DTYPE(segments, DType::kI32);
  return q.elements() > 0;
}

}  // namespace

void AttentionForward(const Context& context, const AttentionForwardArgs& args) {
  if (!CheckAttention(args.q, args.k, args.v, args.segments, args.o, args.lse)) return;
  for (const Tensor* input : {&args.q, &args.k, &args.v, &args.segments}) {
    OT_CHECK_APART(args.o, *input);
    OT_CHECK_APART(args.lse, *input);
  }
  OT_CHECK_APART(args.o, args.lse);
  internal::Call(context.kernels().attention_forward, "attention forward", context, args);
}

void AttentionBackward(const Context& context, const AttentionBackwardArgs& args) {
  const bool any = CheckAttention(args.q, args.k, args.v, args.segments, args.o, args.lse);
  OT_CHECK(args.dout.shape() == args.q.shape() && args.dq.shape() == args.q.shape())
      << "dout " << args.dout.shape().ToString() << " and dq " << args.dq.shape().ToString()
      << " beside q " << args.q.shape().ToString();
  OT_CHECK(args.dk.shape() == args.k.shape() && args.dv.shape() == args.k.shape())
      << "dk " << args.dk.shape().ToString() << " and dv " << args.dv.shape().ToString()
      << " beside k " << args.k.shape().ToString();
  OT_CHECK_DTYPE(args.dout, args.q.dtype());
  OT_CHECK_DTYPE(args.dq, args.q.dtype());
  OT_CHECK_DTYPE(args.dk, args.q.dtype());
  OT_CHECK_DTYPE(args.dv, args.q.dtype());
  if (!any) return;
  for (const Tensor* output : {&args.dq, &args.dk, &args.dv}) {
    for (const Tensor* input :
         {&args.dout, &args.q, &args.k, &args.v, &args.segments, &args.o, &args.lse}) {
      OT_CHECK_APART(*output, *input);
    }
  }
  OT_CHECK_APART(args.dq, args.dk);
  OT_CHECK_APART(args.dq, args.dv);
  OT_CHECK_APART(args.dk, args.dv);
  internal::Call(context.kernels().attention_backward, "attention backward", context, args);
}

int64_t AttentionScratch(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                         int64_t width, DType dtype, AttentionKind kind) {
  if (batch * length * heads * kv_heads * width == 0) return 0;
  if (dtype == DType::kF64) {
    return cpu::AttentionScratchBytes<double>(batch, length, heads, kv_heads, width);
  }
  // Other devices keep o . dout of every query, [B, H, S] f32.
  const int64_t dots = batch * heads * length * static_cast<int64_t>(sizeof(float));
  const int64_t kernels =
      std::max(dots, cpu::AttentionScratchBytes<float>(batch, length, heads, kv_heads, width));
  if (kind == AttentionKind::kKernels || dtype != DType::kBF16) return kernels;
  return std::max(kernels, LayoutOf({batch, length, heads, kv_heads, width}).bytes);
}

}  // namespace overtok

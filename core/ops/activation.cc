#include "core/ops/activation.h"

#include "core/ops/check_args.h"

namespace overtok {

void SwiGluForward(const Context& context, const SwiGluForwardArgs& args) {
  OT_CHECK_ACT(args.y);
  for (const Tensor& input : {args.gate, args.up}) {
    OT_CHECK_DTYPE(input, args.y.dtype());
    OT_CHECK_EQ(input.elements(), args.y.elements());
    OT_CHECK_SAME_OR_APART(args.y, input);
  }
  if (args.y.elements() == 0) return;
  internal::Call(context.kernels().swiglu_forward, "SwiGLU forward", context, args);
}

void SwiGluBackward(const Context& context, const SwiGluBackwardArgs& args) {
  OT_CHECK_ACT(args.dy);
  for (const Tensor& tensor : {args.gate, args.up, args.dgate, args.dup}) {
    OT_CHECK_DTYPE(tensor, args.dy.dtype());
    OT_CHECK_EQ(tensor.elements(), args.dy.elements());
  }
  for (const Tensor& output : {args.dgate, args.dup})
    for (const Tensor& input : {args.dy, args.gate, args.up}) OT_CHECK_SAME_OR_APART(output, input);
  OT_CHECK_APART(args.dgate, args.dup);
  if (args.dy.elements() == 0) return;
  internal::Call(context.kernels().swiglu_backward, "SwiGLU backward", context, args);
}

}  // namespace overtok

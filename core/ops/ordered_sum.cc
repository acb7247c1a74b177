#include "core/ops/ordered_sum.h"

#include "core/ops/check_args.h"

namespace overtok {

void OrderedSum(const Context& context, const OrderedSumArgs& args) {
  OT_CHECK(!args.parts.empty());
  OT_CHECK_ACT(args.out);
  for (const Tensor& part : args.parts) {
    OT_CHECK_DTYPE(part, args.out.dtype());
    OT_CHECK_EQ(part.elements(), args.out.elements());
    OT_CHECK_SAME_OR_APART(part, args.out);
  }
  if (args.out.elements() == 0) return;
  internal::Call(context.kernels().ordered_sum, "ordered sum", context, args);
}

}  // namespace overtok

#include "core/ops/reduce.h"

#include "core/ops/kernels.h"

namespace overtok {

void WeightedSum(const Context& context, const WeightedSumArgs& args) {
  OT_CHECK(args.out.defined() && args.out.dtype() == DType::kF64 && args.out.elements() == 1);
  OT_CHECK(args.w.dtype() == DType::kF32 || args.w.dtype() == DType::kF64);
  OT_CHECK(args.power == 1 || args.power == 2);
  if (args.x.defined()) {
    OT_CHECK(args.x.dtype() == args.w.dtype());
    OT_CHECK_EQ(args.x.elements(), args.w.elements());
  }
  if (args.w.elements() == 0) {
    if (!args.accumulate) Fill(context, {.x = args.out, .value = 0});
    return;
  }
  OT_CHECK(context.kernels().weighted_sum != nullptr) << "this backend lacks weighted_sum";
  context.kernels().weighted_sum(context, args);
}

}  // namespace overtok

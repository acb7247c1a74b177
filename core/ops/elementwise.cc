#include "core/ops/elementwise.h"

#include "core/ops/check_args.h"

namespace overtok {

void Fill(const Context& context, const FillArgs& args) {
  OT_CHECK_ACT(args.x);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().fill, "fill", context, args);
}

void Cast(const Context& context, const CastArgs& args) {
  const DType from = args.x.dtype(), to = args.y.dtype();
  const bool narrow_or_wide =
      (from == DType::kF32 && to == DType::kBF16) || (from == DType::kBF16 && to == DType::kF32);
  OT_CHECK(narrow_or_wide || (from == to && internal::IsActivation(from)))
      << "no cast from " << NameOf(from) << " to " << NameOf(to);
  OT_CHECK_EQ(args.x.elements(), args.y.elements());
  OT_CHECK_SAME_OR_APART(args.x, args.y);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().cast, "cast", context, args);
}

void Add(const Context& context, const AddArgs& args) {
  OT_CHECK_ACT(args.y);
  OT_CHECK_DTYPE(args.x, args.y.dtype());
  OT_CHECK_EQ(args.x.elements(), args.y.elements());
  OT_CHECK_SAME_OR_APART(args.x, args.y);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().add, "add", context, args);
}

}  // namespace overtok

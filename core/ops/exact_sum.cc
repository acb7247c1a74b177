#include "core/ops/exact_sum.h"

#include "core/exact_sum.h"
#include "core/ops/check_args.h"

namespace overtok {

void AddExact(const Context& context, const AddExactArgs& args) {
  OT_CHECK_DTYPE(args.words, DType::kI64);
  OT_CHECK_EQ(args.words.rank(), 2);
  const int64_t sums = args.words.dim(0), n = args.values.elements();
  OT_CHECK_SHAPE(args.words, {sums, ExactSum::kWords});
  if (args.values.defined()) OT_CHECK_DTYPE(args.values, DType::kF64);
  OT_CHECK_APART(args.words, args.values);
  OT_CHECK(sums > 0 ? n % sums == 0 && n / sums <= exact::kMostAdded : n == 0)
      << n << " values for " << sums << " exact sums: expected a multiple of them, at most "
      << exact::kMostAdded << " for each";
  if (sums == 0 || (n == 0 && args.accumulate)) return;
  internal::Call(context.kernels().add_exact, "exact addition", context, args);
}

void RoundExact(const Context& context, const RoundExactArgs& args) {
  OT_CHECK_DTYPE(args.words, DType::kI64);
  OT_CHECK_EQ(args.words.rank(), 3);
  const int64_t ranks = args.words.dim(0), sums = args.words.dim(1);
  OT_CHECK_SHAPE(args.words, {ranks, sums, ExactSum::kWords});
  OT_CHECK(ranks >= 1 && ranks <= exact::kMostRanks)
      << "words of " << ranks << " ranks, expected 1 to " << exact::kMostRanks;
  OT_CHECK_DTYPE(args.out, DType::kF64);
  OT_CHECK_SHAPE(args.out, {sums});
  OT_CHECK_APART(args.out, args.words);
  if (sums == 0) return;
  internal::Call(context.kernels().round_exact, "rounding of exact sums", context, args);
}

void HaltUnlessFinite(const Context& context, const HaltUnlessFiniteArgs& args) {
  OT_CHECK_DTYPE(args.halted, DType::kU32);
  OT_CHECK_SHAPE(args.halted, {1});
  OT_CHECK_DTYPE(args.x, DType::kF64);
  OT_CHECK_APART(args.halted, args.x);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().halt_unless_finite, "halt of what is not finite", context, args);
}

}  // namespace overtok

#include "core/ops/optimizer.h"

#include "core/ops/check_args.h"

namespace overtok {
namespace {

void CheckScalars(const Tensor& scalars, int64_t count) {
  OT_CHECK_DTYPE(scalars, DType::kF64);
  OT_CHECK_EQ(scalars.elements(), count);
}

void CheckHalted(const Tensor& halted) {
  if (!halted.defined()) return;
  OT_CHECK_DTYPE(halted, DType::kU32);
  OT_CHECK_SHAPE(halted, {1});
}

void CheckClip(const Clip& clip) {
  OT_CHECK_GE(clip.max_norm, 0);
  CheckHalted(clip.halted);
  if (clip.max_norm > 0) CheckScalars(clip.norm_squared, 1);
}

// A parameter and what goes with it: one dtype, f32 or f64, equal sizes, nothing shared.
void CheckStates(const Tensor& w, std::initializer_list<Tensor> others) {
  OT_CHECK(w.dtype() == DType::kF32 || w.dtype() == DType::kF64)
      << "parameters and states are " << NameOf(w.dtype()) << ", expected f32 or f64";
  for (const Tensor& other : others) {
    OT_CHECK_DTYPE(other, w.dtype());
    OT_CHECK_EQ(other.elements(), w.elements());
    OT_CHECK_APART(other, w);
  }
}

void CheckAdam(const Tensor& w, const Tensor& m, const Tensor& v, const AdamConstants& constants) {
  CheckStates(w, {m, v});
  CheckStates(m, {v});
  OT_CHECK(constants.correction1 > 0 && constants.correction2 > 0)
      << "bias corrections " << constants.correction1 << ", " << constants.correction2
      << ": steps count from 1";
}

void CheckAdam(const Tensor& w, const Tensor& gradient, const Tensor& m, const Tensor& v,
               const AdamConstants& constants) {
  CheckAdam(w, m, v, constants);
  CheckStates(w, {gradient});
  CheckStates(gradient, {m, v});
}

}  // namespace

void SumSquares(const Context& context, const SumSquaresArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_GE(args.block, 1);
  CheckScalars(args.sums, (args.x.elements() + args.block - 1) / args.block);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().sum_squares, "sum of squares", context, args);
}

void MuonMomentum(const Context& context, const MuonMomentumArgs& args) {
  OT_CHECK_ACT(args.x);
  CheckStates(args.buffer, {args.gradient});
  OT_CHECK_DTYPE(args.buffer, internal::StatisticType(args.x.dtype()));
  OT_CHECK_EQ(args.x.elements(), args.buffer.elements());
  OT_CHECK_APART(args.x, args.buffer);
  OT_CHECK_SAME_OR_APART(args.x, args.gradient);
  CheckScalars(args.norm_squared, 1);
  CheckClip(args.clip);
  if (args.x.elements() == 0) {
    Fill(context, {.x = args.norm_squared, .value = 0});
    return;
  }
  internal::Call(context.kernels().muon_momentum, "Muon's momentum", context, args);
}

void ScaleByNorm(const Context& context, const ScaleByNormArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_EQ(args.x.rank(), 3);
  CheckScalars(args.norm_squared, args.x.dim(0));
  OT_CHECK_GE(args.eps, 0);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().scale_by_norm, "scaling by the norm", context, args);
}

void NewtonSchulzPolynomial(const Context& context, const NewtonSchulzPolynomialArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_EQ(args.x.rank(), 3);
  OT_CHECK_SHAPE(args.x, {args.x.dim(0), args.x.dim(1), args.x.dim(1)});
  OT_CHECK_DTYPE(args.y, args.x.dtype());
  OT_CHECK_SHAPE(args.y, {args.x.dim(0), args.x.dim(1), args.x.dim(1)});
  OT_CHECK_APART(args.y, args.x);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().newton_schulz_polynomial, "the Newton-Schulz polynomial",
                 context, args);
}

void HyperballUpdate(const Context& context, const HyperballUpdateArgs& args) {
  OT_CHECK_ACT(args.u);
  CheckStates(args.w, {});
  OT_CHECK_DTYPE(args.w, internal::StatisticType(args.u.dtype()));
  OT_CHECK_EQ(args.u.elements(), args.w.elements());
  OT_CHECK_APART(args.w, args.u);
  CheckHalted(args.halted);
  if (args.w.elements() == 0) return;
  internal::Call(context.kernels().hyperball_update, "the hyperball update", context, args);
}

void AdamHMoments(const Context& context, const AdamHMomentsArgs& args) {
  CheckAdam(args.w, args.gradient, args.m, args.v, args.constants);
  CheckClip(args.clip);
  CheckScalars(args.sums, ElementBlocks(args.w.elements()) * kBlockSums);
  if (args.w.elements() == 0) return;
  internal::Call(context.kernels().adamh_moments, "AdamH's moments", context, args);
}

void AdamHMove(const Context& context, const AdamHMoveArgs& args) {
  CheckAdam(args.w, args.m, args.v, args.constants);
  CheckScalars(args.totals, kBlockSums);
  CheckHalted(args.halted);
  if (args.w.elements() == 0) return;
  internal::Call(context.kernels().adamh_move, "AdamH's move", context, args);
}

void AdamUpdate(const Context& context, const AdamUpdateArgs& args) {
  CheckAdam(args.w, args.gradient, args.m, args.v, args.constants);
  CheckClip(args.clip);
  if (args.w.elements() == 0) return;
  internal::Call(context.kernels().adam_update, "the Adam update", context, args);
}

int64_t OptimizerScratch(int64_t elements) {
  // Of the finer blocks, and the hyperball's two scalars between its passes.
  const int64_t blocks = (elements + kPassBlockElements - 1) / kPassBlockElements;
  return (blocks * kBlockSums + 2) * static_cast<int64_t>(sizeof(double));
}

}  // namespace overtok

// Optimizer passes. Each state update is one memory-bound pass. Sums are taken over blocks of fixed
// size. What is summed over one whole matrix here is then added in order, so that results do not
// depend on the thread count; what may lie on several ranks (gradient norms, AdamH) leaves as f64
// sums of blocks, which the caller joins by core/exact_sum.h, so that results do not depend on the
// ranks either. Formulas: docs/optimizers.md. All parameters, gradients and states are f32 here
// (tests: f64).
#pragma once

#include "core/context.h"
#include "core/ops/blocks.h"
#include "core/tensor.h"

namespace overtok {

// sums[b] (f64) = sum of squares of elements [b * block, (b + 1) * block) of x (f32, f64 or bf16).
// sums: one for each block, the last of which may be short.
struct SumSquaresArgs {
  Tensor x, sums;
  int64_t block = kBlockElements;
};
void SumSquares(const Context& context, const SumSquaresArgs& args);

// The factor by which a group's gradients are clipped: min(1, max_norm / sqrt(norm_squared[0])); 1
// when the norm is 0. Passes that change weights or states also ask here whether they may.
struct Clip {
  Tensor norm_squared;  // [1] f64
  double max_norm = 0;  // 0: no clipping
  // [1] u32 (HaltUnlessFinite, core/ops/exact_sum.h): where it is not 0 the pass writes nothing, no
  // weight, state or sum; undefined: never.
  Tensor halted = {};
};

// One matrix of a stack of equal shapes. buffer <- mu buffer + g;  x <- nesterov ? g + mu buffer :
// buffer;  g is gradient times clip factor. norm_squared[0] = sum of squares of x before rounding
// (f64). x: f32, bf16 (f64), same element count.
struct MuonMomentumArgs {
  Tensor gradient, buffer, x, norm_squared;
  Clip clip;
  double momentum = 0;
  bool nesterov = true;
};
void MuonMomentum(const Context& context, const MuonMomentumArgs& args);

// x[b] <- x[b] / (sqrt(norm_squared[b]) + eps). x: [batch, rows, cols] f32, bf16 (f64);
// norm_squared: [batch] f64.
struct ScaleByNormArgs {
  Tensor x, norm_squared;
  double eps = 0;
};
void ScaleByNorm(const Context& context, const ScaleByNormArgs& args);

// y[b] <- c y[b] + b x[b] + a I. x, y: [batch, n, n] f32, bf16 (f64): with x = A and y = A A the
// Newton-Schulz factor.
struct NewtonSchulzPolynomialArgs {
  Tensor x, y;
  double a = 0, b = 0, c = 0;
};
void NewtonSchulzPolynomial(const Context& context, const NewtonSchulzPolynomialArgs& args);

// One matrix: R = |w|_F; w' = w - rate R u / max(|u|_F, 1e-10); w <- R w' / max(|w'|_F, 1e-10). w:
// f32 (f64); u: f32, bf16 (f64). |w'| comes from |w|, |u| and <w, u> (f64), so that w is read twice
// and written once.
struct HyperballUpdateArgs {
  Tensor w, u;
  double rate = 0;
  Tensor halted = {};  // as Clip::halted
};
void HyperballUpdate(const Context& context, const HyperballUpdateArgs& args);

struct AdamConstants {
  double beta1 = 0, beta2 = 0, eps = 0;
  double correction1 = 1, correction2 = 1;  // 1 - beta^t, t counted from 1
};

// First pass of AdamH: m <- beta1 m + (1 - beta1) g; v <- beta2 v + (1 - beta2) g^2. u = (m /
// correction1) / (sqrt(v / correction2) + eps) is not stored; sums[b] = |w|^2, <w, u>, |u|^2 over
// the b-th block of kBlockElements. 0 / (0 + eps) = 0. w may be a part of a parameter.
struct AdamHMomentsArgs {
  Tensor w, gradient, m, v;
  Tensor sums;  // [blocks, kBlockSums] f64
  Clip clip;
  AdamConstants constants;
};
void AdamHMoments(const Context& context, const AdamHMomentsArgs& args);

// Second pass: the update of HyperballUpdateArgs, with u formed again from the moments that the
// first pass left, and the sums over the whole parameter.
struct AdamHMoveArgs {
  Tensor w, m, v;
  Tensor totals;  // [kBlockSums] f64
  AdamConstants constants;
  double rate = 0;
  Tensor halted = {};  // as Clip::halted
};
void AdamHMove(const Context& context, const AdamHMoveArgs& args);

// m, v and u as AdamHMoments forms them; w <- w - rate u.
struct AdamUpdateArgs {
  Tensor w, gradient, m, v;
  Clip clip;
  AdamConstants constants;
  double rate = 0;
};
void AdamUpdate(const Context& context, const AdamUpdateArgs& args);

// Scratch that MuonMomentum and HyperballUpdate ask for, given the element count of the matrix.
int64_t OptimizerScratch(int64_t elements);

}  // namespace overtok

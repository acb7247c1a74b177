// One tile of softmax cross-entropy over ready logits: loss and gradient in one visit of each row.
// Per row, log-sum-exp, loss and p - 1 are f64 from exponentials in fp32 (f64 for f64), and keep
// their digits however confident the row is; the gradient is rounded once. Loss = log-sum-exp -
// target logit, never the log of a probability. losses/linear_cross_entropy.h calls
// it tile by tile, so that [tokens, V] never exists.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// logits: [R, V] f32 (f64). targets: [R] u32 below V. weight: [R] f32 (f64): factor of the row's
// gradient; a row of weight 0 has its loss computed all the same and gets an exactly zero gradient.
// dlogits: [R, V] f32, bf16 (f64), may alias logits (equal dtype), or undefined for evaluation:
//   weight * (softmax(logits) - onehot(target) + 2 z_loss * lse * softmax(logits)).
// loss, lse: [R] f32 (f64), written: cross-entropy without the z-loss (z_loss * lse^2, which the
// caller forms from lse).
// logits are scratch: with dlogits of another dtype they come back overwritten, else as they were.
// bias: [V] f32 (f64), added to every row's logits first; undefined: nothing is.
// focal_gamma > 0: loss = (1 - p)^gamma l with l the cross-entropy, p = exp(-l), and the gradient
// above (without the z term, which it excludes) is scaled by (1 - p)^gamma + gamma (1 - p)^(gamma
// - 1) p l; 1 - p = -expm1(-l), floored at 1e-12 (Lin et al. 2017, gradient through both factors).
struct SoftmaxXentArgs {
  Tensor logits, targets, weight, dlogits, loss, lse;
  double z_loss = 0;
  Tensor bias = Tensor();
  double focal_gamma = 0;
};
void SoftmaxXent(const Context& context, const SoftmaxXentArgs& args);

}  // namespace overtok

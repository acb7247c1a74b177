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

// The same over classes that are divided among ranks, in two visits with one all-gather between
// them: what each rank's classes come to, and the loss and gradient from all ranks' figures.
//
// logits: [R, V] f32 (f64), V may be 0; come back as they were. targets: [R] u32, index among this
// rank's classes, or kNoRow (core/ops/embedding.h) where another rank has it. bias as above.
// stats: [R, 3] f64, written: the largest logit m of this rank's classes (-inf without classes);
// the sum of exp(logit - m) over them without the target, which stays apart so that 1 - p keeps its
// digits (0); the target's logit where this rank has it, else -inf.
struct SoftmaxShardStatsArgs {
  Tensor logits, targets, bias, stats;
};
void SoftmaxShardStats(const Context& context, const SoftmaxShardStatsArgs& args);

// all_stats: [ranks, R, 3] f64 in rank order; log-sum-exp, loss and p - 1 come from them in f64, in
// the order of ranks, the same bits on every rank. Everything else as in SoftmaxXentArgs, with
// targets as above; dlogits of a class is weight * (global probability - [target]) and so on.
// Logits are no scratch here: only a gradient in their place overwrites them. On one rank loss, lse
// and dlogits are SoftmaxXent's, bit for bit. A target that no rank has is a bug; the row's loss is
// then infinite, which no training step lets pass, and counts nothing where its weight is 0.
struct SoftmaxXentShardArgs {
  Tensor logits, targets, weight, dlogits, loss, lse, all_stats;
  double z_loss = 0;
  Tensor bias = Tensor();
  double focal_gamma = 0;
};
void SoftmaxXentShard(const Context& context, const SoftmaxXentShardArgs& args);

}  // namespace overtok

// RMSNorm over the last dimension: y = x * rstd * gain, rstd = 1 / sqrt(mean(x^2) + eps) (Zhang &
// Sennrich 2019, eq. 4). Statistics are fp32 (f64 for f64); with bf16 activations x * rstd is
// rounded to bf16 before it meets the gain, also in bf16.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// x, y: [T, d] act. gain: [d] f32 (f64 for f64). rstd: [T] f32 (f64), written. residual, when
// defined: [T, d] act, and y = residual + norm(x) (the post-norm of a branch with its residual
// sum). y may alias residual, not x.
struct RmsNormForwardArgs {
  Tensor x, gain, residual, y, rstd;
  double eps = 1e-5;
};
void RmsNormForward(const Context& context, const RmsNormForwardArgs& args);

// dy, x, dx: [T, d] act; gain, dgain: [d] f32 (f64); rstd: [T] as the forward wrote it. dx += when
// accumulate_dx, else =. dgain += when accumulate_dgain, else =; summed over rows in blocks of
// fixed size, then over blocks in order, so the result does not depend on the thread count. dx may
// alias dy when not accumulating. (The residual's gradient is dy itself.)
struct RmsNormBackwardArgs {
  Tensor dy, x, gain, rstd, dx, dgain;
  bool accumulate_dx = false, accumulate_dgain = false;
};
void RmsNormBackward(const Context& context, const RmsNormBackwardArgs& args);
int64_t RmsNormBackwardScratch(int64_t rows, int64_t width, DType dtype);

}  // namespace overtok

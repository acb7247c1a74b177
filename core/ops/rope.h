// QK-norm and rotary positions in one pass: per head RMSNorm over D with one gain of D shared by
// all heads, then RoPE with half-split pairing (i, i + D/2) (Su et al. 2021; pairing as in Qwen3).
// Positions run 0..S-1 over the window.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// cos, sin: [S, D/2] f32 (f64): angle of position p and pair i is p * theta^(-2i/D). With bf16
// activations the caller rounds them to bf16 values. D even.
struct RopeTables {
  Tensor cos, sin;
};
// Fills host tensors; `round_to_bf16` as said above.
void FillRopeTables(double theta, bool round_to_bf16, const RopeTables& tables);

// x, y: [B*S, heads, D] act; row t has position t mod S. gain: [D] f32 (f64). rstd: [B*S, heads]
// f32 (f64), written.
struct QkNormRopeForwardArgs {
  Tensor x, gain, y, rstd;
  RopeTables tables;
  double eps = 1e-5;
};
void QkNormRopeForward(const Context& context, const QkNormRopeForwardArgs& args);

// dx may alias dy. dgain as in RmsNormBackward.
struct QkNormRopeBackwardArgs {
  Tensor dy, x, gain, rstd, dx, dgain;
  RopeTables tables;
  bool accumulate_dgain = false;
};
void QkNormRopeBackward(const Context& context, const QkNormRopeBackwardArgs& args);
int64_t QkNormRopeBackwardScratch(int64_t rows, int64_t heads, int64_t width, DType dtype);

}  // namespace overtok

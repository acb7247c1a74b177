// Causal, document-masked attention with grouped key/value heads, tiled: no [S, S] matrix is ever
// kept (Dao 2023, FlashAttention-2, for the recurrences). Position i attends to j when j <= i and
// segment[i] == segment[j]. Query head h reads key/value head h / (H / K). Scores, softmax and
// accumulation in fp32 (f64 for f64).
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// q, o: [B*S, H, D] act; k, v: [B*S, K, D] act; segments: [B, S] i32, never falling along S; lse:
// [B, H, S] f32 (f64), natural log of the sum of exponentials of the scaled scores, written. scale
// is usually 1/sqrt(D).
struct AttentionForwardArgs {
  Tensor q, k, v, segments, o, lse;
  double scale = 0;
};
void AttentionForward(const Context& context, const AttentionForwardArgs& args);

// dout, dq: [B*S, H, D]; dk, dv: [B*S, K, D]; act. Probabilities are recomputed from lse. Outputs
// are overwritten and alias nothing. Deterministic: sums over query heads of one group and over
// tiles run in a fixed order.
struct AttentionBackwardArgs {
  Tensor dout, q, k, v, segments, o, lse, dq, dk, dv;
  double scale = 0;
};
void AttentionBackward(const Context& context, const AttentionBackwardArgs& args);
// Scratch of either direction, with what the device's attention takes (Device::attention).
int64_t AttentionScratch(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                         int64_t width, DType dtype, AttentionKind kind = AttentionKind::kKernels);

}  // namespace overtok

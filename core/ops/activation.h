// SwiGLU's gate: y = silu(gate) * up, silu(g) = g / (1 + exp(-g)) (Shazeer 2020). Computed in fp32,
// rounded once.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// gate, up, y: [T, m] act.
struct SwiGluForwardArgs {
  Tensor gate, up, y;
};
void SwiGluForward(const Context& context, const SwiGluForwardArgs& args);

// dgate may alias dy or gate; dup may alias up or dy (not both on dy).
struct SwiGluBackwardArgs {
  Tensor dy, gate, up, dgate, dup;
};
void SwiGluBackward(const Context& context, const SwiGluBackwardArgs& args);

}  // namespace overtok

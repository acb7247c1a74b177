// MicroBatch: what one forward and backward pass reads, on the device.
#pragma once

#include "core/memory.h"
#include "core/tensor.h"

namespace overtok {

// b windows of S tokens, T = b S.
struct MicroBatch {
  Tensor tokens;    // [T] u32
  Tensor segments;  // [b, S] i32
  Tensor targets;  // [T] u32: the next token; the window's first token at its last position (weight
                   // 0 there)
  Tensor loss_weight;  // [T] f32
  Tensor
      gradient_weight;  // [T] f32: loss_weight / (sum of loss_weight over the whole global batch)
};

}  // namespace overtok

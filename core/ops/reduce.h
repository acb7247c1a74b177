// Sums over a whole tensor into an f64 scalar in device memory, over blocks of fixed size and then
// in order.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// out[0] (f64) = sum of w[i] * x[i] (power 1) or w[i] * x[i]^2 (power 2), plus out[0] when
// accumulate. x, w: f32 (f64), equal element counts. x undefined: the sum of w. Entries of weight 0
// contribute exactly 0, whatever x holds.
struct WeightedSumArgs {
  Tensor x, w, out;
  int power = 1;
  bool accumulate = false;
};
void WeightedSum(const Context& context, const WeightedSumArgs& args);

}  // namespace overtok

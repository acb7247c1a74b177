// Matrix products, fp32 accumulation: c = alpha op(a) op(b) + (accumulate ? c : 0), op = transpose
// where asked.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// a: [M, K] ([K, M] when trans_a), b: [K, N] ([N, K] when trans_b), c: [M, N]; or all three with a
// leading batch dimension. dtypes (a, b -> c): f32, f32 -> f32; bf16, bf16 -> bf16 or f32; f64, f64
// -> f64. c aliases neither a nor b. tf32: operands in f32 are rounded to TF32 first (10 bits of
// mantissa, nearest, ties to even); others are not touched.
struct MatmulArgs {
  Tensor a, b, c;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;
  float alpha = 1;
  bool tf32 = false;
};
void Matmul(const Context& context, const MatmulArgs& args);

}  // namespace overtok

// Matrix products, fp32 accumulation: c = alpha op(a) op(b) + (accumulate ? c : 0), op = transpose
// where asked.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// a: [M, K] ([K, M] when trans_a), b: [K, N] ([N, K] when trans_b), c: [M, N]; or all three with a
// leading batch dimension. dtypes (a, b -> c): f32, f32 -> f32; bf16, bf16 -> bf16 or f32; f64, f64
// -> f64. c aliases neither a nor b. tf32: operands in f32 are rounded to TF32 first (10 bits of
// mantissa, nearest, ties to even: core/tf32.h); others are not touched.
struct MatmulArgs {
  Tensor a, b, c;
  bool trans_a = false, trans_b = false;
  bool accumulate = false;
  float alpha = 1;
  bool tf32 = false;
};
// Kernels get tf32 only with operands that are TF32 values already, which this rounds into scratch
// by RoundToTF32. So every device multiplies the same numbers, whatever its products would make of
// the bits that TF32 has not.
void Matmul(const Context& context, const MatmulArgs& args);
// Scratch of a product of f32 operands with tf32; others need none. b_elements: 0 where b is a.
int64_t MatmulScratch(int64_t a_elements, int64_t b_elements);

// y = x rounded to TF32. Both f32, equal element counts.
struct RoundToTF32Args {
  Tensor x, y;
};
void RoundToTF32(const Context& context, const RoundToTF32Args& args);

}  // namespace overtok

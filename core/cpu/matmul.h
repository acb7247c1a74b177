// How core/cpu/matmul.cc hands a product to a library: plain sizes and strides, no tensors.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace overtok::cpu {

// c[i, j] = alpha * sum_k a[i, k] b[k, j] + (accumulate ? c[i, j] : 0) for each of `batch`
// products. Element (i, k) of a lies at i * a_row + k * a_column; one of the two strides is 1; b
// likewise; c has rows of c_row elements. Products follow each other at *_batch elements.
struct Product {
  int64_t batch = 1, m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  DType operand = DType::kF32, result = DType::kF32;
  int64_t a_batch = 0, a_row = 0, a_column = 0;
  int64_t b_batch = 0, b_row = 0, b_column = 0;
  int64_t c_batch = 0, c_row = 0;
  bool accumulate = false;
  float alpha = 1;
};

// By oneDNN, on all threads. False when oneDNN has no implementation for the dtypes on this
// processor (bf16 without AVX-512, f64 anywhere) or is not built in; nothing is done then.
bool OneDnnProduct(const Product& product);

// Any dtypes, any processor: tiles converted to f32 (f64 for f64), multiplied by Eigen, divided
// over threads by tiles of c.
void TiledProduct(const Product& product);

}  // namespace overtok::cpu

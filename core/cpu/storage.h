// Storage types of activations (f32, bf16, f64) and the types they are computed in.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/tensor.h"

namespace overtok::cpu {

// Elements per piece of a parallel elementwise loop, so that a piece is worth a thread.
inline constexpr int64_t kElementGrain = 8192;

// f64 is computed in f64, f32 and bf16 in f32.
template <class S>
using ComputeOf = std::conditional_t<std::is_same_v<S, double>, double, float>;

// Calls f with a value of the storage type: f(float()), f(bf16()) or f(double()).
template <class F>
void ByStorage(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kBF16:
      return f(bf16{});
    case DType::kF64:
      return f(double{});
    default:
      OT_CHECK(false) << "no kernel for " << NameOf(dtype);
  }
}

}  // namespace overtok::cpu

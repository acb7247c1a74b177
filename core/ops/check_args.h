// What the entry points of core/ops/*.cc check with. A failed check is a bug of ours and aborts.
#pragma once

#include "core/check.h"
#include "core/context.h"
#include "core/ops/kernels.h"
#include "core/tensor.h"

namespace overtok::internal {

inline bool IsActivation(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF64;
}

// The type of statistics, gains and losses beside activations of `act`.
inline DType StatisticType(DType act) { return act == DType::kF64 ? DType::kF64 : DType::kF32; }

// True when the two share a byte without being the same tensor; equal views are Same.
inline bool Same(const Tensor& a, const Tensor& b) {
  return a.raw() != nullptr && a.raw() == b.raw() && a.bytes() == b.bytes();
}
inline bool Overlap(const Tensor& a, const Tensor& b) {
  const char* a_begin = static_cast<const char*>(a.raw());
  const char* b_begin = static_cast<const char*>(b.raw());
  return a.bytes() > 0 && b.bytes() > 0 && a_begin < b_begin + b.bytes() &&
         b_begin < a_begin + a.bytes();
}

template <class Args>
void Call(Kernel<Args> kernel, const char* op, const Context& context, const Args& args) {
  OT_CHECK(kernel != nullptr) << "this backend has no " << op;
  kernel(context, args);
}

}  // namespace overtok::internal

#define OT_CHECK_SHAPE(tensor, ...)                                     \
  OT_CHECK((tensor).shape() == ::overtok::Shape(__VA_ARGS__))           \
      << #tensor " is " << (tensor).shape().ToString() << ", expected " \
      << ::overtok::Shape(__VA_ARGS__).ToString()
#define OT_CHECK_DTYPE(tensor, expected)   \
  OT_CHECK((tensor).dtype() == (expected)) \
      << #tensor " is " << NameOf((tensor).dtype()) << ", expected " << NameOf(expected)
#define OT_CHECK_ACT(tensor)                                    \
  OT_CHECK(::overtok::internal::IsActivation((tensor).dtype())) \
      << #tensor " is " << NameOf((tensor).dtype()) << ", expected f32, bf16 or f64"
// Equal views are allowed, partly overlapping ones never are.
#define OT_CHECK_SAME_OR_APART(a, b)                                               \
  OT_CHECK(::overtok::internal::Same(a, b) || !::overtok::internal::Overlap(a, b)) \
      << #a " and " #b " overlap in part"
#define OT_CHECK_APART(a, b) \
  OT_CHECK(!::overtok::internal::Overlap(a, b)) << #a " may not alias " #b

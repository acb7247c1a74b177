// Weighted sums. One thread: the inputs are one value per token, small beside everything else.
#include "core/cpu/kernels.h"

namespace overtok::cpu {
namespace {

template <class T>
double Sum(const WeightedSumArgs& args) {
  const T* w = args.w.data<T>();
  const T* x = args.x.defined() ? args.x.data<T>() : nullptr;
  double sum = 0;
  for (int64_t i = 0; i < args.w.elements(); ++i) {
    if (w[i] == T{0}) continue;
    const double value = x == nullptr ? 1.0 : static_cast<double>(x[i]);
    sum += static_cast<double>(w[i]) * (args.power == 2 ? value * value : value);
  }
  return sum;
}

}  // namespace

void WeightedSum(const Context& /*context*/, const WeightedSumArgs& args) {
  double* out = args.out.data<double>();
  const double sum = args.w.dtype() == DType::kF64 ? Sum<double>(args) : Sum<float>(args);
  out[0] = args.accumulate ? out[0] + sum : sum;
}

}  // namespace overtok::cpu

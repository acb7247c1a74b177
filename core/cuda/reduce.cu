// Weighted sums into an f64 scalar: one block, whose threads each add every 1024th term in f64,
// and then their sums in order. One value per token: half a megabyte for 65,536 of them, which one
// block reads in some ten microseconds; more blocks would want memory to meet in.
// Bytes: 8 n read (4 n without x); 3 n operations in f64.
#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 1024;

__global__ void __launch_bounds__(kThreads)
    WeightedSumKernel(const float* x, const float* w, int64_t n, bool squared, bool accumulate,
                      double* out) {
  Shared shared;
  double* room = shared.Take<double>(kThreads / kWarp);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) {
    const float weight = w[i];
    if (weight == 0) continue;  // whatever x holds
    const double value = x == nullptr ? 1.0 : static_cast<double>(x[i]);
    sum += static_cast<double>(weight) * (squared ? value * value : value);
  }
  sum = BlockSum(sum, room);
  if (threadIdx.x == 0) out[0] = accumulate ? out[0] + sum : sum;
}

}  // namespace

void WeightedSum(const Context& context, const WeightedSumArgs& args) {
  OT_CHECK(args.w.dtype() == DType::kF32) << "the CUDA backend has no weighted sum for f64";
  const float* x = args.x.defined() ? args.x.data<float>() : nullptr;
  Launch("WeightedSum", context,
         {.threads = kThreads, .shared_bytes = SharedBytes<double>(kThreads / kWarp)},
         WeightedSumKernel, x, args.w.data<float>(), args.w.elements(), args.power == 2,
         args.accumulate, args.out.data<double>());
}

}  // namespace overtok::OT_BACKEND

// Sums of squares over fixed blocks of elements, in f64: what gradient norms are joined from.
// Reads x once: 4 bytes an element in f32, 2 in bf16; 2 FLOPs in f64.
#include "core/cuda/optimizer.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kSumThreads = 512;
constexpr int kSumWarps = 8;
// Up to this size a sum is a warp's work, above it a block's: 32 elements a thread.
constexpr int64_t kWarpElements = 1024;

template <int N, class S>
__device__ __forceinline__ double SquaresOf(const S* x, int64_t begin, int64_t end, int64_t first,
                                            int64_t stride) {
  double sum = 0;
  for (int64_t at = begin + first * N; at < end; at += stride * N) {
    if (at + N <= end) {
      const auto pack = LoadPack<N>(x + at);
      for (int i = 0; i < N; ++i) {
        const double value = ToFloat(pack.v[i]);
        sum = fma(value, value, sum);
      }
    } else {
      for (int64_t i = at; i < end; ++i) {
        const double value = ToFloat(x[i]);
        sum = fma(value, value, sum);
      }
    }
  }
  return sum;
}

template <int N, class S>
__global__ void __launch_bounds__(kSumThreads)
    SumSquaresKernel(const S* x, double* sums, int64_t n, int64_t block) {
  Shared shared;
  auto* room = shared.Take<double>(kSumThreads / kWarp);
  const Range range = BlockRange(block, n);
  const double sum =
      BlockSum(SquaresOf<N>(x, range.begin, range.end, threadIdx.x, kSumThreads), room);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <int N, class S>
__global__ void __launch_bounds__(kSumWarps* kWarp)
    SumSquaresByWarpKernel(const S* x, double* sums, int64_t n, int64_t block, int64_t count) {
  const int64_t b = int64_t{blockIdx.x} * kSumWarps + WarpIndex();
  if (b >= count) return;
  const int64_t begin = b * block, end = begin + block < n ? begin + block : n;
  const double sum = WarpSum(SquaresOf<N>(x, begin, end, Lane(), kWarp));
  if (Lane() == 0) sums[b] = sum;
}

}  // namespace

void SumSquares(const Context& context, const SumSquaresArgs& args) {
  const int64_t n = args.x.elements(), count = args.sums.elements();
  auto* sums = args.sums.data<double>();
  ByActivation(args.x.dtype(), "sum of squares", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    const auto* x = args.x.data<S>();
    const bool aligned = IsAligned<kPack>(x) && args.block % kPack == 0;
    ByAlignment<kPack>(aligned, [&](auto size) {
      constexpr int kSize = decltype(size)::value;
      if (args.block > kWarpElements) {
        Launch("SumSquares", context,
               {.blocks = count,
                .threads = kSumThreads,
                .shared_bytes = SharedBytes<double>(kSumThreads / kWarp)},
               SumSquaresKernel<kSize, S>, x, sums, n, args.block);
      } else {
        Launch("SumSquaresByWarp", context,
               {.blocks = CeilDiv(count, kSumWarps), .threads = kSumWarps * kWarp},
               SumSquaresByWarpKernel<kSize, S>, x, sums, n, args.block, count);
      }
    });
  });
}

}  // namespace overtok::OT_BACKEND

// The hyperball update: one pass for |w|^2, <w, u> and |u|^2 in f64, one block that joins them into
// the move, one pass that makes it.
// Bytes an element: w and u are read, 8 (6 with bf16 u), and read again while w is written, 12
// (10); the second reading finds up to some 6 million elements in the L2 cache. 9 FLOPs (6 of them
// f64).
#include "core/cuda/optimizer.h"

namespace overtok::OT_BACKEND {
namespace {

template <int N, class S>
__global__ void __launch_bounds__(kPassThreads)
    HyperballSumsKernel(const float* w, const S* u, double* partial, int64_t n,
                        const uint32_t* halted) {
  Shared shared;
  auto* room = shared.Take<double>(kPassThreads / kWarp);
  if (IsHalted(halted)) return;
  const Range range = BlockRange(kPassElements, n);
  double ww = 0, wu = 0, uu = 0;
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    const auto w0 = LoadPack<kSize>(w + at);
    const auto u0 = LoadPack<kSize>(u + at);
    for (int i = 0; i < kSize; ++i) {
      const double x = w0.v[i], y = ToFloat(u0.v[i]);
      ww = fma(x, x, ww);
      wu = fma(x, y, wu);
      uu = fma(y, y, uu);
    }
  });
  ww = BlockSum(ww, room);
  wu = BlockSum(wu, room);
  uu = BlockSum(uu, room);
  if (threadIdx.x == 0) {
    double* out = partial + int64_t{blockIdx.x} * kBlockSums;
    out[0] = ww;
    out[1] = wu;
    out[2] = uu;
  }
}

__global__ void __launch_bounds__(kJoinThreads)
    HyperballJoinKernel(const double* partial, int64_t blocks, double rate, double* move,
                        const uint32_t* halted) {
  Shared shared;
  auto* room = shared.Take<double>(kJoinThreads / kWarp);
  if (IsHalted(halted)) return;
  const double ww = JoinedSum(partial, blocks, kBlockSums, 0, room);
  const double wu = JoinedSum(partial, blocks, kBlockSums, 1, room);
  const double uu = JoinedSum(partial, blocks, kBlockSums, 2, room);
  if (threadIdx.x != 0) return;
  const SphereMove exact = MoveOnSphere(ww, wu, uu, rate);
  move[0] = exact.scale;
  move[1] = exact.step;
}

template <int N, class S>
__global__ void __launch_bounds__(kPassThreads)
    HyperballMoveKernel(float* w, const S* u, const double* move, int64_t n,
                        const uint32_t* halted) {
  if (IsHalted(halted)) return;
  const auto scale = static_cast<float>(move[0]), step = static_cast<float>(move[1]);
  const Range range = BlockRange(kPassElements, n);
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    auto w1 = LoadPack<kSize>(w + at);
    const auto u0 = LoadPack<kSize>(u + at);
    for (int i = 0; i < kSize; ++i) w1.v[i] = scale * fmaf(-step, ToFloat(u0.v[i]), w1.v[i]);
    StorePack<kSize>(w + at, w1);
  });
}

}  // namespace

void HyperballUpdate(const Context& context, const HyperballUpdateArgs& args) {
  const int64_t n = args.w.elements(), blocks = PassBlocks(n);
  auto* partial = static_cast<double*>(context.Scratch(OptimizerScratch(n)));
  double* move = partial + blocks * kBlockSums;
  const uint32_t* halted = HaltedOf(args.halted);
  const LaunchShape pass = {.blocks = blocks,
                            .threads = kPassThreads,
                            .shared_bytes = SharedBytes<double>(kPassThreads / kWarp)};
  const LaunchShape join = {.blocks = 1,
                            .threads = kJoinThreads,
                            .shared_bytes = SharedBytes<double>(kJoinThreads / kWarp)};
  ByActivation(args.u.dtype(), "hyperball update", [&](auto zero) {
    using S = decltype(zero);
    auto* w = args.w.data<float>();
    const auto* u = args.u.data<S>();
    ByAlignment<4>(IsAligned<4>(w) && IsAligned<4>(u), [&](auto size) {
      constexpr int kSize = decltype(size)::value;
      Launch("HyperballSums", context, pass, HyperballSumsKernel<kSize, S>, w, u, partial, n,
             halted);
      Launch("HyperballJoin", context, join, HyperballJoinKernel, partial, blocks, args.rate, move,
             halted);
      Launch("HyperballMove", context, {.blocks = blocks, .threads = kPassThreads},
             HyperballMoveKernel<kSize, S>, w, u, move, n, halted);
    });
  });
}

}  // namespace overtok::OT_BACKEND

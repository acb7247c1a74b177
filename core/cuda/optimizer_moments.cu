// Adam, and AdamH's two passes. The update u is formed from the moments and never stored.
//   AdamUpdate    reads w, gradient, m, v and writes w, m, v: 28 bytes an element, 14 FLOPs
//   AdamHMoments  reads w, gradient, m, v and writes m, v: 24 bytes, 17 FLOPs (6 of them f64)
//   AdamHMove     reads w, m, v and writes w: 16 bytes, 8 FLOPs
#include "core/cuda/optimizer.h"

namespace overtok::OT_BACKEND {
namespace {

// Threads of a block of kBlockElements, whose sums leave as they are: 8 packs of 4 each.
constexpr int kSumThreads = 512;

template <int N>
__global__ void __launch_bounds__(kPassThreads)
    AdamUpdateKernel(float* w, const float* gradient, float* m, float* v, int64_t n,
                     ClipScalars clip, AdamFactors adam, float rate, const uint32_t* halted) {
  if (IsHalted(halted)) return;
  const auto factor = static_cast<float>(ClipFactor(clip));
  const Range range = BlockRange(kPassElements, n);
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    const auto g = LoadPack<kSize>(gradient + at);
    auto m1 = LoadPack<kSize>(m + at), v1 = LoadPack<kSize>(v + at), w1 = LoadPack<kSize>(w + at);
    for (int i = 0; i < kSize; ++i) {
      const float clipped = g.v[i] * factor;
      m1.v[i] = adam.FirstMoment(m1.v[i], clipped);
      v1.v[i] = adam.SecondMoment(v1.v[i], clipped);
      w1.v[i] = fmaf(-rate, adam.Update(m1.v[i], v1.v[i]), w1.v[i]);
    }
    StorePack<kSize>(m + at, m1);
    StorePack<kSize>(v + at, v1);
    StorePack<kSize>(w + at, w1);
  });
}

template <int N>
__global__ void __launch_bounds__(kSumThreads)
    AdamHMomentsKernel(const float* w, const float* gradient, float* m, float* v, double* sums,
                       int64_t n, ClipScalars clip, AdamFactors adam, const uint32_t* halted) {
  Shared shared;
  auto* room = shared.Take<double>(kSumThreads / kWarp);
  if (IsHalted(halted)) return;
  const auto factor = static_cast<float>(ClipFactor(clip));
  const Range range = BlockRange(kBlockElements, n);
  double ww = 0, wu = 0, uu = 0;
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    const auto g = LoadPack<kSize>(gradient + at), w0 = LoadPack<kSize>(w + at);
    auto m1 = LoadPack<kSize>(m + at), v1 = LoadPack<kSize>(v + at);
    for (int i = 0; i < kSize; ++i) {
      const float clipped = g.v[i] * factor;
      m1.v[i] = adam.FirstMoment(m1.v[i], clipped);
      v1.v[i] = adam.SecondMoment(v1.v[i], clipped);
      const double x = w0.v[i], u = adam.Update(m1.v[i], v1.v[i]);
      ww = fma(x, x, ww);
      wu = fma(x, u, wu);
      uu = fma(u, u, uu);
    }
    StorePack<kSize>(m + at, m1);
    StorePack<kSize>(v + at, v1);
  });
  ww = BlockSum(ww, room);
  wu = BlockSum(wu, room);
  uu = BlockSum(uu, room);
  if (threadIdx.x == 0) {
    double* out = sums + int64_t{blockIdx.x} * kBlockSums;
    out[0] = ww;
    out[1] = wu;
    out[2] = uu;
  }
}

template <int N>
__global__ void __launch_bounds__(kPassThreads)
    AdamHMoveKernel(float* w, const float* m, const float* v, const double* totals, int64_t n,
                    AdamFactors adam, double rate, const uint32_t* halted) {
  Shared shared;
  auto* move = shared.Take<float>(2);
  if (IsHalted(halted)) return;
  // Three divisions and roots in f64: one thread's work.
  if (threadIdx.x == 0) {
    const SphereMove exact = MoveOnSphere(totals[0], totals[1], totals[2], rate);
    move[0] = static_cast<float>(exact.scale);
    move[1] = static_cast<float>(exact.step);
  }
  SyncThreads();
  const float scale = move[0], step = move[1];
  const Range range = BlockRange(kPassElements, n);
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    const auto m0 = LoadPack<kSize>(m + at), v0 = LoadPack<kSize>(v + at);
    auto w1 = LoadPack<kSize>(w + at);
    for (int i = 0; i < kSize; ++i)
      w1.v[i] = scale * fmaf(-step, adam.Update(m0.v[i], v0.v[i]), w1.v[i]);
    StorePack<kSize>(w + at, w1);
  });
}

}  // namespace

void AdamUpdate(const Context& context, const AdamUpdateArgs& args) {
  const int64_t n = args.w.elements();
  auto* w = args.w.data<float>();
  const auto* gradient = args.gradient.data<float>();
  auto* m = args.m.data<float>();
  auto* v = args.v.data<float>();
  const bool aligned =
      IsAligned<4>(w) && IsAligned<4>(gradient) && IsAligned<4>(m) && IsAligned<4>(v);
  ByAlignment<4>(aligned, [&](auto size) {
    Launch("AdamUpdate", context, {.blocks = PassBlocks(n), .threads = kPassThreads},
           AdamUpdateKernel<decltype(size)::value>, w, gradient, m, v, n, ScalarsOf(args.clip),
           AdamFactors(args.constants), static_cast<float>(args.rate), HaltedOf(args.clip.halted));
  });
}

void AdamHMoments(const Context& context, const AdamHMomentsArgs& args) {
  const int64_t n = args.w.elements();
  const auto* w = args.w.data<float>();
  const auto* gradient = args.gradient.data<float>();
  auto* m = args.m.data<float>();
  auto* v = args.v.data<float>();
  const bool aligned =
      IsAligned<4>(w) && IsAligned<4>(gradient) && IsAligned<4>(m) && IsAligned<4>(v);
  const LaunchShape shape = {.blocks = ElementBlocks(n),
                             .threads = kSumThreads,
                             .shared_bytes = SharedBytes<double>(kSumThreads / kWarp)};
  ByAlignment<4>(aligned, [&](auto size) {
    Launch("AdamHMoments", context, shape, AdamHMomentsKernel<decltype(size)::value>, w, gradient,
           m, v, args.sums.data<double>(), n, ScalarsOf(args.clip), AdamFactors(args.constants),
           HaltedOf(args.clip.halted));
  });
}

void AdamHMove(const Context& context, const AdamHMoveArgs& args) {
  const int64_t n = args.w.elements();
  auto* w = args.w.data<float>();
  const auto* m = args.m.data<float>();
  const auto* v = args.v.data<float>();
  const LaunchShape shape = {
      .blocks = PassBlocks(n), .threads = kPassThreads, .shared_bytes = SharedBytes<float>(2)};
  ByAlignment<4>(IsAligned<4>(w) && IsAligned<4>(m) && IsAligned<4>(v), [&](auto size) {
    Launch("AdamHMove", context, shape, AdamHMoveKernel<decltype(size)::value>, w, m, v,
           args.totals.data<double>(), n, AdamFactors(args.constants), args.rate,
           HaltedOf(args.halted));
  });
}

}  // namespace overtok::OT_BACKEND

// Muon: momentum with the norm of what it gives, scaling by norms, and the Newton-Schulz
// polynomial.
//   MuonMomentum            reads gradient and buffer, writes buffer and x: 16 bytes an element
//                           with f32 x, 14 with bf16; 7 FLOPs (2 of them f64)
//   ScaleByNorm             reads and writes x: 8 bytes in f32, 4 in bf16; 1 FLOP
//   NewtonSchulzPolynomial  reads x and y, writes y: 12 bytes in f32, 6 in bf16; 3 FLOPs
#include "core/cuda/optimizer.h"

namespace overtok::OT_BACKEND {
namespace {

template <int N, bool kNesterov, class S>
__global__ void __launch_bounds__(kPassThreads)
    MomentumKernel(const float* gradient, float* buffer, S* x, double* partial, int64_t n,
                   ClipScalars clip, float mu, const uint32_t* halted) {
  Shared shared;
  auto* room = shared.Take<double>(kPassThreads / kWarp);
  if (IsHalted(halted)) return;
  const auto factor = static_cast<float>(ClipFactor(clip));
  const Range range = BlockRange(kPassElements, n);
  double sum = 0;
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    const auto g0 = LoadPack<kSize>(gradient + at);
    auto b = LoadPack<kSize>(buffer + at);
    Pack<S, kSize> out;
    for (int i = 0; i < kSize; ++i) {
      const float g = g0.v[i] * factor;
      b.v[i] = fmaf(mu, b.v[i], g);
      const float value = kNesterov ? fmaf(mu, b.v[i], g) : b.v[i];
      out.v[i] = FromFloat<S>(value);
      const double wide = value;
      sum = fma(wide, wide, sum);
    }
    StorePack<kSize>(buffer + at, b);
    StorePack<kSize>(x + at, out);
  });
  sum = BlockSum(sum, room);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kJoinThreads)
    JoinKernel(const double* partial, int64_t blocks, double* total, const uint32_t* halted) {
  Shared shared;
  auto* room = shared.Take<double>(kJoinThreads / kWarp);
  if (IsHalted(halted)) return;
  const double sum = JoinedSum(partial, blocks, 1, 0, room);
  if (threadIdx.x == 0) total[0] = sum;
}

// Grid: x over one matrix, y over the batch.
template <int N, class S>
__global__ void __launch_bounds__(kPassThreads)
    ScaleByNormKernel(S* x, const double* norm_squared, int64_t each, double eps) {
  const double divisor = sqrt(norm_squared[blockIdx.y]) + eps;
  if (divisor == 0) return;  // a zero matrix stays zero
  const auto narrow = static_cast<float>(divisor);
  S* matrix = x + int64_t{blockIdx.y} * each;
  const Range range = BlockRange(kPassElements, each);
  ForEachPiece<N>(range.begin, range.end, [&](auto size, int64_t at) {
    constexpr int kSize = decltype(size)::value;
    auto pack = LoadPack<kSize>(matrix + at);
    for (int i = 0; i < kSize; ++i) pack.v[i] = FromFloat<S>(ToFloat(pack.v[i]) / narrow);
    StorePack<kSize>(matrix + at, pack);
  });
}

// A warp a row: 8 rows a block, so that a row's place on the diagonal costs one division.
constexpr int kRowWarps = 8;
template <int N, class S>
__global__ void __launch_bounds__(kRowWarps* kWarp)
    PolynomialKernel(const S* x, S* y, int64_t rows, int64_t n, float a, float b, float c) {
  const int64_t row = int64_t{blockIdx.x} * kRowWarps + WarpIndex();
  if (row >= rows) return;
  const int64_t diagonal = row % n;
  for (int64_t column = Lane() * N; column < n; column += kWarp * N) {
    const auto in = LoadPack<N>(x + row * n + column);
    auto out = LoadPack<N>(y + row * n + column);
    for (int i = 0; i < N; ++i) {
      float value = fmaf(c, ToFloat(out.v[i]), b * ToFloat(in.v[i]));
      if (column + i == diagonal) value += a;  // before y is rounded
      out.v[i] = FromFloat<S>(value);
    }
    StorePack<N>(y + row * n + column, out);
  }
}

}  // namespace

void MuonMomentum(const Context& context, const MuonMomentumArgs& args) {
  const int64_t n = args.x.elements(), blocks = PassBlocks(n);
  auto* partial = static_cast<double*>(context.Scratch(OptimizerScratch(n)));
  const auto* gradient = args.gradient.data<float>();
  auto* buffer = args.buffer.data<float>();
  const uint32_t* halted = HaltedOf(args.clip.halted);
  const LaunchShape pass = {.blocks = blocks,
                            .threads = kPassThreads,
                            .shared_bytes = SharedBytes<double>(kPassThreads / kWarp)};
  ByActivation(args.x.dtype(), "Muon's momentum", [&](auto zero) {
    using S = decltype(zero);
    auto* x = args.x.data<S>();
    const bool aligned = IsAligned<4>(gradient) && IsAligned<4>(buffer) && IsAligned<4>(x);
    ByAlignment<4>(aligned, [&](auto size) {
      constexpr int kSize = decltype(size)::value;
      Launch("MuonMomentum", context, pass,
             args.nesterov ? MomentumKernel<kSize, true, S> : MomentumKernel<kSize, false, S>,
             gradient, buffer, x, partial, n, ScalarsOf(args.clip),
             static_cast<float>(args.momentum), halted);
    });
  });
  Launch("MuonNorm", context,
         {.blocks = 1,
          .threads = kJoinThreads,
          .shared_bytes = SharedBytes<double>(kJoinThreads / kWarp)},
         JoinKernel, partial, blocks, args.norm_squared.data<double>(), halted);
}

void ScaleByNorm(const Context& context, const ScaleByNormArgs& args) {
  const int64_t batch = args.x.dim(0), each = args.x.elements() / batch;
  const LaunchShape shape = {
      .blocks = PassBlocks(each), .threads = kPassThreads, .blocks_y = batch};
  ByActivation(args.x.dtype(), "scaling by the norm", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    auto* x = args.x.data<S>();
    ByAlignment<kPack>(FitsPacks<kPack>(x, each), [&](auto size) {
      Launch("ScaleByNorm", context, shape, ScaleByNormKernel<decltype(size)::value, S>, x,
             args.norm_squared.data<double>(), each, args.eps);
    });
  });
}

void NewtonSchulzPolynomial(const Context& context, const NewtonSchulzPolynomialArgs& args) {
  const int64_t n = args.x.dim(2), rows = args.x.dim(0) * n;
  const LaunchShape shape = {.blocks = CeilDiv(rows, kRowWarps), .threads = kRowWarps * kWarp};
  ByActivation(args.x.dtype(), "Newton-Schulz polynomial", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    const auto* x = args.x.data<S>();
    auto* y = args.y.data<S>();
    ByAlignment<kPack>(FitsPacks<kPack>(x, n) && FitsPacks<kPack>(y, n), [&](auto size) {
      Launch("NewtonSchulzPolynomial", context, shape, PolynomialKernel<decltype(size)::value, S>,
             x, y, rows, n, static_cast<float>(args.a), static_cast<float>(args.b),
             static_cast<float>(args.c));
    });
  });
}

}  // namespace overtok::OT_BACKEND

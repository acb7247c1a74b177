// RMSNorm, forward (with the residual's sum) and backward. A team of threads, a warp or a block by
// width, takes a row and keeps it in registers between the statistic and the result, so that
// memory is read once; the gain, rounded as the results are, stays in registers over all rows of a
// team. Rows of more than 8192 values are read a second time from the caches.
// Bytes for T rows of d values of s bytes: forward 2 s T d (3 s with a residual), backward 3 s T d
// (4 s when accumulating) and 8 d T / 32 for the gain's partial sums. FLOPs: 4 T d and 10 T d.
#include "core/cuda/kernels.h"
#include "core/cuda/packs.h"
#include "core/cuda/sum_rows.h"
#include "core/ops/blocks.h"

namespace overtok::OT_BACKEND {
namespace {

// Eight warps: one team of a block, or eight of a warp.
constexpr int kThreads = 256;
// Rows of a team in the forward, one after another: the gain is fetched once for all of them.
constexpr int kTeamRows = 4;

template <int kTeam>
__device__ __forceinline__ float TeamSum(float value, float* room) {
  if constexpr (kTeam == kWarp) {
    return WarpSum(value);
  } else {
    return BlockSum(value, room);
  }
}

// The pack of this column of the gain as it meets the values: rounded to S.
template <int N, class S>
__device__ __forceinline__ Held<S, N> HoldGain(const float* gain) {
  float values[N];
  LoadFloats<N>(gain, values);
  return Rounded<S, N>(values);
}

template <class S>
struct ForwardTensors {
  const S* x;
  const float* gain;
  const S* residual;  // or null
  S* y;
  float* rstd;
  int64_t rows, width;
  float eps;
};

template <class S, int N, int kTeam, int kHeld>
__global__ void __launch_bounds__(kThreads, 1) ForwardKernel(ForwardTensors<S> t) {
  Shared shared;
  float* room = shared.Take<float>(kThreads / kWarp);
  constexpr int kSlots = kHeld > 0 ? kHeld : 1;
  constexpr int kTeams = kThreads / kTeam;
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  const int64_t first =
      int64_t{blockIdx.x} * kTeams * kTeamRows + static_cast<int>(threadIdx.x) / kTeam;
  Held<S, N> gains[kSlots] = {};
  if constexpr (kHeld > 0) {
    ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
      gains[h] = HoldGain<N, S>(t.gain + column);
    });
  }
  for (int r = 0; r < kTeamRows; ++r) {
    const int64_t row = first + int64_t{r} * kTeams;
    if (row >= t.rows) return;  // the same for all threads of a team
    const int64_t begin = row * t.width;
    Held<S, N> held[kSlots] = {};
    float squares = 0;
    ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
      held[h] = Hold<N>(t.x + begin + column);
      float x[N];
      Unpack<S, N>(held[h], x);
      for (int i = 0; i < N; ++i) squares += x[i] * x[i];
    });
    squares = TeamSum<kTeam>(squares, room);
    const float scale = 1.0F / sqrtf(squares / static_cast<float>(t.width) + t.eps);
    if (member == 0) t.rstd[row] = scale;
    ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
      if constexpr (kHeld == 0) {
        held[h] = Hold<N>(t.x + begin + column);
        gains[h] = HoldGain<N, S>(t.gain + column);
      }
      float y[N], g[N];
      Unpack<S, N>(held[h], y);
      Unpack<S, N>(gains[h], g);
      for (int i = 0; i < N; ++i) y[i] *= scale;
      RoundTo<S, N>(y);
      for (int i = 0; i < N; ++i) y[i] *= g[i];
      if (t.residual != nullptr) {
        RoundTo<S, N>(y);
        float sum[N];
        Unpack<S, N>(Hold<N>(t.residual + begin + column), sum);
        for (int i = 0; i < N; ++i) y[i] = sum[i] + y[i];
      }
      StoreRounded<N>(t.y + begin + column, y);
    });
  }
}

template <class S>
struct BackwardTensors {
  const S* dy;
  const S* x;
  const float* gain;
  const float* rstd;
  S* dx;
  float* partial;  // [RowBlocks(rows), width]
  int64_t rows, width;
  bool accumulate;
};

// Blocks that an SM has to have room for: two of warps with rows of bf16, which memory needs to
// have enough under way (without the bound the kernel takes 140 registers, one block's worth).
template <class S, int N, int kTeam>
constexpr int LeastBlocks() {
  return kTeam == kWarp && sizeof(S) == 2 && N > 1 ? 2 : 1;
}

// A block takes kBlockRows rows and writes their sum for the gain.
template <class S, int N, int kTeam, int kHeld>
__global__ void __launch_bounds__(kThreads, LeastBlocks<S, N, kTeam>())
    BackwardKernel(BackwardTensors<S> t) {
  Shared shared;
  constexpr int kSlots = kHeld > 0 ? kHeld : 1;
  constexpr int kTeams = kThreads / kTeam;
  // Room for a team's sum or, where there are several, for their sums of the gain.
  float* room = shared.Take<float>(kTeams > 1 ? t.width : int64_t{kThreads / kWarp});
  const int member = static_cast<int>(threadIdx.x) % kTeam;
  const int team = static_cast<int>(threadIdx.x) / kTeam;
  float* partial = t.partial + int64_t{blockIdx.x} * t.width;
  Held<S, N> gains[kSlots] = {};
  float sums[kSlots][N] = {};
  if constexpr (kHeld > 0) {
    ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
      gains[h] = HoldGain<N, S>(t.gain + column);
    });
  }
  for (int r = team; r < kBlockRows; r += kTeams) {
    const int64_t row = int64_t{blockIdx.x} * kBlockRows + r;
    if (row >= t.rows) break;
    const int64_t begin = row * t.width;
    const float scale = t.rstd[row];
    Held<S, N> xs[kSlots] = {}, dys[kSlots] = {};
    if constexpr (kHeld > 0) {
      ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
        xs[h] = Hold<N>(t.x + begin + column);
        dys[h] = Hold<N>(t.dy + begin + column);
      });
    }
    // Wide rows fetch here, and keep the gain's sums in the block's row of `partial`.
    const auto fetch = [&](int64_t column, int h) {
      xs[h] = Hold<N>(t.x + begin + column);
      dys[h] = Hold<N>(t.dy + begin + column);
      gains[h] = HoldGain<N, S>(t.gain + column);
    };
    float dot = 0;
    ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
      if constexpr (kHeld == 0) {
        fetch(column, h);
        if (r == 0) {
          for (int i = 0; i < N; ++i) sums[h][i] = 0;
        } else {
          LoadFloats<N>(partial + column, sums[h]);
        }
      }
      float hat[N], e[N], g[N];
      Unpack<S, N>(xs[h], hat);
      Unpack<S, N>(dys[h], e);
      Unpack<S, N>(gains[h], g);
      for (int i = 0; i < N; ++i) {
        hat[i] *= scale;
        dot += e[i] * g[i] * hat[i];
      }
      RoundTo<S, N>(hat);
      for (int i = 0; i < N; ++i) sums[h][i] += e[i] * hat[i];
      if constexpr (kHeld == 0) StoreFloats<N>(partial + column, sums[h]);
    });
    const float mean = TeamSum<kTeam>(dot, room) / static_cast<float>(t.width);
    ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
      if constexpr (kHeld == 0) fetch(column, h);
      float x[N], value[N], g[N];
      Unpack<S, N>(xs[h], x);
      Unpack<S, N>(dys[h], value);
      Unpack<S, N>(gains[h], g);
      for (int i = 0; i < N; ++i) value[i] = scale * (value[i] * g[i] - x[i] * scale * mean);
      if (t.accumulate) {
        float before[N];
        Unpack<S, N>(Hold<N>(t.dx + begin + column), before);
        for (int i = 0; i < N; ++i) value[i] += before[i];
      }
      StoreRounded<N>(t.dx + begin + column, value);
    });
  }
  if constexpr (kHeld > 0) {
    if constexpr (kTeams > 1) {
      // The teams add their sums one after another.
      for (int turn = 0; turn < kTeams; ++turn) {
        if (team == turn) {
          ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
            if (turn > 0) {
              float before[N];
              LoadFloats<N>(room + column, before);
              for (int i = 0; i < N; ++i) sums[h][i] = before[i] + sums[h][i];
            }
            StoreFloats<N>(turn == kTeams - 1 ? partial + column : room + column, sums[h]);
          });
        }
        SyncThreads();
      }
    } else {
      ForPacks<N, kTeam, kHeld>(member, t.width, [&](int64_t column, int h) {
        StoreFloats<N>(partial + column, sums[h]);
      });
    }
  }
}

// Calls f with (pack, team, packs held) as constants: enough threads that each holds 32 values at
// most (in the backward x, dy, the gain and its sum: 80 registers of bf16, 128 of f32). Rows that
// are not aligned are read value by value.
template <class S, class F>
void ByWidth(bool aligned, int64_t width, const F& f) {
  constexpr int kPack = 16 / sizeof(S);
  const auto with = [&](auto pack, auto team, auto values) {
    constexpr int N = decltype(pack)::value;
    f(pack, team, std::integral_constant<int, decltype(values)::value / N>());
  };
  using Packed = std::integral_constant<int, kPack>;
  using Single = std::integral_constant<int, 1>;
  using Warp = std::integral_constant<int, kWarp>;
  using Block = std::integral_constant<int, kThreads>;
  using Any = std::integral_constant<int, 0>;
  if (!aligned) {
    if (width <= 16 * kWarp) return with(Single(), Warp(), std::integral_constant<int, 16>());
    return with(Single(), Block(), Any());
  }
  if (width <= 32 * kWarp) return with(Packed(), Warp(), std::integral_constant<int, 32>());
  if (width <= 8 * kThreads) return with(Packed(), Block(), std::integral_constant<int, 8>());
  if (width <= 16 * kThreads) return with(Packed(), Block(), std::integral_constant<int, 16>());
  if (width <= 32 * kThreads) return with(Packed(), Block(), std::integral_constant<int, 32>());
  return with(Packed(), Block(), Any());
}

}  // namespace

void RmsNormForward(const Context& context, const RmsNormForwardArgs& args) {
  ByActivation(args.x.dtype(), "RMSNorm", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    const int64_t rows = args.x.dim(0), width = args.x.dim(1);
    const ForwardTensors<S> tensors = {args.x.data<S>(),
                                       args.gain.data<float>(),
                                       args.residual.defined() ? args.residual.data<S>() : nullptr,
                                       args.y.data<S>(),
                                       args.rstd.data<float>(),
                                       rows,
                                       width,
                                       static_cast<float>(args.eps)};
    const bool aligned = FitsPacks<kPack>(tensors.x, width) && FitsPacks<kPack>(tensors.y, width) &&
                         FitsPacks<kPack>(tensors.residual, width) &&
                         FitsFloats<kPack>(tensors.gain, width);
    ByWidth<S>(aligned, width, [&](auto pack, auto team, auto held) {
      constexpr int kTeam = decltype(team)::value;
      Launch("RmsNormForward", context,
             {.blocks = CeilDiv(rows, int64_t{kThreads / kTeam} * kTeamRows),
              .threads = kThreads,
              .shared_bytes = SharedBytes<float>(kThreads / kWarp)},
             ForwardKernel<S, decltype(pack)::value, kTeam, decltype(held)::value>, tensors);
    });
  });
}

void RmsNormBackward(const Context& context, const RmsNormBackwardArgs& args) {
  ByActivation(args.x.dtype(), "RMSNorm", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    const int64_t rows = args.x.dim(0), width = args.x.dim(1);
    auto* partial =
        static_cast<float*>(context.Scratch(RmsNormBackwardScratch(rows, width, args.x.dtype())));
    const BackwardTensors<S> tensors = {args.dy.data<S>(),
                                        args.x.data<S>(),
                                        args.gain.data<float>(),
                                        args.rstd.data<float>(),
                                        args.dx.data<S>(),
                                        partial,
                                        rows,
                                        width,
                                        args.accumulate_dx};
    const bool aligned =
        FitsPacks<kPack>(tensors.dy, width) && FitsPacks<kPack>(tensors.x, width) &&
        FitsPacks<kPack>(tensors.dx, width) && FitsFloats<kPack>(tensors.gain, width) &&
        FitsFloats<kPack>(partial, width);
    ByWidth<S>(aligned, width, [&](auto pack, auto team, auto held) {
      constexpr int kTeam = decltype(team)::value;
      Launch("RmsNormBackward", context,
             {.blocks = RowBlocks(rows),
              .threads = kThreads,
              .shared_bytes = SharedBytes<float>(kTeam == kWarp ? width : kThreads / kWarp)},
             BackwardKernel<S, decltype(pack)::value, kTeam, decltype(held)::value>, tensors);
    });
    SumRows(context, partial, RowBlocks(rows), width, args.accumulate_dgain,
            args.dgain.data<float>());
  });
}

}  // namespace overtok::OT_BACKEND

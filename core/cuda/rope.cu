// QK-norm and RoPE in one pass per head, forward and backward. A group of 8 or 32 lanes takes a
// head of one token and keeps it in registers, each lane packs at the same place of both halves, so
// that a rotated pair meets in one lane; the normalised head is never stored. Cosines and sines of
// a token are fetched for every head, from the caches but for the first.
// Bytes for n = B S heads D values of s bytes: forward 2 s n, backward 3 s n and 8 D T / 32 for the
// gain's partial sums; the tables 4 S D, from L2. FLOPs: 7 n and 13 n.
#include "core/cuda/kernels.h"
#include "core/cuda/packs.h"
#include "core/cuda/sum_rows.h"
#include "core/ops/blocks.h"

namespace overtok::OT_BACKEND {
namespace {

// Forward: 32 groups of 8 lanes a block. Each takes two heads and has both under way at once: a
// block waits for 16 KB of heads of 128 bf16 values, an SM with three of them for 48 KB, and 4.8
// TB/s over the microsecond that memory takes are 36 KB an SM.
constexpr int kThreads = 256;
constexpr int kGroupHeads = 2;
// Backward: the heads of kBlockRows tokens; 64 groups of 8 lanes, so that 4096 tokens, 128 blocks,
// still fill the SMs. Heads too wide for registers are summed by one warp for all of a block.
constexpr int BackwardThreads(int held) { return held > 0 ? 512 : kWarp; }

// The packs at one place of both halves of a head.
template <class S, int N>
struct Halves {
  Held<S, N> first, second;
};
template <int N, class S>
__device__ __forceinline__ Halves<S, N> HoldHalves(const S* head, int64_t half, int64_t column) {
  return {Hold<N>(head + column), Hold<N>(head + half + column)};
}
// The gain's, rounded to S as it meets the values.
template <int N, class S>
__device__ __forceinline__ Halves<S, N> HoldGains(const float* gain, int64_t half, int64_t column) {
  float g[N];
  LoadFloats<N>(gain + column, g);
  const Held<S, N> first = Rounded<S, N>(g);
  LoadFloats<N>(gain + half + column, g);
  return {first, Rounded<S, N>(g)};
}

template <class S>
struct ForwardTensors {
  const S* x;
  const float* gain;
  const float* cosines;
  const float* sines;
  S* y;
  float* rstd;
  // Heads of all tokens, and per token: below 2^32, so that dividing them is cheap.
  uint32_t items, heads, length;
  int64_t width;
  float eps;
};

template <class S, int N, int kGroup, int kHeld>
__global__ void __launch_bounds__(kThreads, kHeld > 0 ? 3 : 1) ForwardKernel(ForwardTensors<S> t) {
  constexpr int kSlots = kHeld > 0 ? kHeld : 1;
  constexpr uint32_t kGroups = kThreads / kGroup;
  const int member = static_cast<int>(threadIdx.x) % kGroup;
  const int64_t half = t.width / 2;
  const uint32_t first = blockIdx.x * kGroups * kGroupHeads + threadIdx.x / kGroup;
  Halves<S, N> gains[kSlots] = {}, held[kGroupHeads][kSlots] = {};
  if constexpr (kHeld > 0) {
    ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
      gains[h] = HoldGains<N, S>(t.gain, half, column);
    });
    for (int k = 0; k < kGroupHeads; ++k) {
      const uint32_t item = first + static_cast<uint32_t>(k) * kGroups;
      if (item >= t.items) continue;
      ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
        held[k][h] = HoldHalves<N>(t.x + int64_t{item} * t.width, half, column);
      });
    }
  }
  for (int k = 0; k < kGroupHeads; ++k) {
    const uint32_t item = first + static_cast<uint32_t>(k) * kGroups;
    // Lanes of a warp sum together: those without a head add zeros.
    const bool valid = item < t.items;
    const int64_t begin = int64_t{item} * t.width;
    float squares = 0;
    if (valid) {
      ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
        if constexpr (kHeld == 0) held[k][h] = HoldHalves<N>(t.x + begin, half, column);
        float a[N], b[N];
        Unpack<S, N>(held[k][h].first, a);
        Unpack<S, N>(held[k][h].second, b);
        for (int i = 0; i < N; ++i) squares += a[i] * a[i] + b[i] * b[i];
      });
    }
    squares = GroupSum<kGroup>(squares);
    if (!valid) continue;
    const float scale = 1.0F / sqrtf(squares / static_cast<float>(t.width) + t.eps);
    if (member == 0) t.rstd[item] = scale;
    const int64_t angles = int64_t{item / t.heads % t.length} * half;
    ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
      if constexpr (kHeld == 0) {
        held[k][h] = HoldHalves<N>(t.x + begin, half, column);
        gains[h] = HoldGains<N, S>(t.gain, half, column);
      }
      float a[N], b[N], g[N], c[N], s[N];
      Unpack<S, N>(held[k][h].first, a);
      Unpack<S, N>(held[k][h].second, b);
      for (int i = 0; i < N; ++i) a[i] *= scale;
      for (int i = 0; i < N; ++i) b[i] *= scale;
      RoundTo<S, N>(a);
      RoundTo<S, N>(b);
      Unpack<S, N>(gains[h].first, g);
      for (int i = 0; i < N; ++i) a[i] *= g[i];
      Unpack<S, N>(gains[h].second, g);
      for (int i = 0; i < N; ++i) b[i] *= g[i];
      RoundTo<S, N>(a);
      RoundTo<S, N>(b);
      LoadFloats<N>(t.cosines + angles + column, c);
      LoadFloats<N>(t.sines + angles + column, s);
      for (int i = 0; i < N; ++i) {
        const float turned = a[i] * c[i] - b[i] * s[i];
        b[i] = b[i] * c[i] + a[i] * s[i];
        a[i] = turned;
      }
      StoreRounded<N>(t.y + begin + column, a);
      StoreRounded<N>(t.y + begin + half + column, b);
    });
  }
}

template <class S>
struct BackwardTensors {
  const S* dy;
  const S* x;
  const float* gain;
  const float* rstd;
  const float* cosines;
  const float* sines;
  S* dx;
  float* partial;  // [RowBlocks(tokens), width]
  uint32_t items, heads, length;
  int64_t width;
};

// What of x and dy a lane holds at one place: dy is turned back when it is read.
template <class S, int N>
struct Place {
  Halves<S, N> x, dy;
};

template <class S, int N, int kGroup, int kHeld>
__global__ void __launch_bounds__(BackwardThreads(kHeld)) BackwardKernel(BackwardTensors<S> t) {
  Shared shared;
  constexpr int kSlots = kHeld > 0 ? kHeld : 1;
  constexpr int kGroups = BackwardThreads(kHeld) / kGroup;
  constexpr int kWarps = BackwardThreads(kHeld) / kWarp;
  // The warps' sums of the gain.
  float* room = shared.Take<float>(kHeld > 0 ? kWarps * t.width : 0);
  const int member = static_cast<int>(threadIdx.x) % kGroup;
  const int64_t half = t.width / 2;
  float* partial = t.partial + int64_t{blockIdx.x} * t.width;
  const uint32_t block_items = static_cast<uint32_t>(kBlockRows) * t.heads;
  const uint32_t begin_item = blockIdx.x * block_items;
  const uint32_t left = t.items - begin_item;
  const uint32_t count = left < block_items ? left : block_items;
  Halves<S, N> gains[kSlots] = {};
  float sums[kSlots][2][N] = {};
  if constexpr (kHeld > 0) {
    ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
      gains[h] = HoldGains<N, S>(t.gain, half, column);
    });
  }
  Place<S, N> next[kSlots] = {};
  const auto fetch = [&](uint32_t item, int64_t column) -> Place<S, N> {
    const int64_t begin = int64_t{item} * t.width;
    return {HoldHalves<N>(t.x + begin, half, column), HoldHalves<N>(t.dy + begin, half, column)};
  };
  const auto fetch_next = [&](uint32_t at) {
    if (at >= count) return;
    ForPacks<N, kGroup, kHeld>(
        member, half, [&](int64_t column, int h) { next[h] = fetch(begin_item + at, column); });
  };
  const uint32_t group = threadIdx.x / kGroup;
  if constexpr (kHeld > 0) fetch_next(group);
  // All groups go round equally often: lanes of a warp sum together.
  for (uint32_t first = 0; first < count; first += kGroups) {
    const uint32_t at = first + group;
    const bool valid = at < count;
    const uint32_t item = begin_item + at;
    const int64_t begin = int64_t{item} * t.width;
    const int64_t angles = int64_t{item / t.heads % t.length} * half;
    const float scale = valid ? t.rstd[item] : 0.0F;
    Place<S, N> place[kSlots] = {};
    if constexpr (kHeld > 0) {
      for (int h = 0; h < kSlots; ++h) place[h] = next[h];
      fetch_next(at + kGroups);
    }
    // d of the normalised head times the gain, and x rstd, before rounding.
    const auto unpack = [&](int64_t column, int h, float(&a)[N], float(&b)[N], float(&hat_a)[N],
                            float(&hat_b)[N]) {
      float e[N], f[N], c[N], s[N];
      Unpack<S, N>(place[h].dy.first, e);
      Unpack<S, N>(place[h].dy.second, f);
      LoadFloats<N>(t.cosines + angles + column, c);
      LoadFloats<N>(t.sines + angles + column, s);
      for (int i = 0; i < N; ++i) {
        a[i] = e[i] * c[i] + f[i] * s[i];
        b[i] = f[i] * c[i] - e[i] * s[i];
      }
      Unpack<S, N>(place[h].x.first, hat_a);
      Unpack<S, N>(place[h].x.second, hat_b);
      for (int i = 0; i < N; ++i) hat_a[i] *= scale;
      for (int i = 0; i < N; ++i) hat_b[i] *= scale;
    };
    // Wide heads fetch here, and keep the gain's sums in the block's row of `partial`.
    const auto read = [&](int64_t column, int h) {
      place[h] = fetch(item, column);
      gains[h] = HoldGains<N, S>(t.gain, half, column);
    };
    float dot = 0;
    if (valid) {
      ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
        if constexpr (kHeld == 0) {
          read(column, h);
          if (at > 0) {
            LoadFloats<N>(partial + column, sums[h][0]);
            LoadFloats<N>(partial + half + column, sums[h][1]);
          } else {
            for (int i = 0; i < N; ++i) sums[h][0][i] = sums[h][1][i] = 0;
          }
        }
        float a[N], b[N], hat_a[N], hat_b[N], g[N];
        unpack(column, h, a, b, hat_a, hat_b);
        Unpack<S, N>(gains[h].first, g);
        for (int i = 0; i < N; ++i) dot += a[i] * g[i] * hat_a[i];
        Unpack<S, N>(gains[h].second, g);
        for (int i = 0; i < N; ++i) dot += b[i] * g[i] * hat_b[i];
        RoundTo<S, N>(hat_a);
        RoundTo<S, N>(hat_b);
        for (int i = 0; i < N; ++i) sums[h][0][i] += a[i] * hat_a[i];
        for (int i = 0; i < N; ++i) sums[h][1][i] += b[i] * hat_b[i];
        if constexpr (kHeld == 0) {
          StoreFloats<N>(partial + column, sums[h][0]);
          StoreFloats<N>(partial + half + column, sums[h][1]);
        }
      });
    }
    const float mean = GroupSum<kGroup>(dot) / static_cast<float>(t.width);
    if (valid) {
      ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
        if constexpr (kHeld == 0) read(column, h);
        float a[N], b[N], hat_a[N], hat_b[N], g[N];
        unpack(column, h, a, b, hat_a, hat_b);
        Unpack<S, N>(gains[h].first, g);
        for (int i = 0; i < N; ++i) a[i] = scale * (a[i] * g[i] - hat_a[i] * mean);
        Unpack<S, N>(gains[h].second, g);
        for (int i = 0; i < N; ++i) b[i] = scale * (b[i] * g[i] - hat_b[i] * mean);
        StoreRounded<N>(t.dx + begin + column, a);
        StoreRounded<N>(t.dx + begin + half + column, b);
      });
    }
  }
  if constexpr (kHeld > 0) {
    // The groups of a warp, then the warps one after another.
    for (int distance = kGroup; distance < kWarp; distance *= 2) {
      for (int h = 0; h < kSlots; ++h) {
        for (int i = 0; i < N; ++i) sums[h][0][i] += ShuffleXor(sums[h][0][i], distance);
        for (int i = 0; i < N; ++i) sums[h][1][i] += ShuffleXor(sums[h][1][i], distance);
      }
    }
    float* row = room + WarpIndex() * t.width;
    if (Lane() < kGroup) {
      ForPacks<N, kGroup, kHeld>(member, half, [&](int64_t column, int h) {
        StoreFloats<N>(row + column, sums[h][0]);
        StoreFloats<N>(row + half + column, sums[h][1]);
      });
    }
    SyncThreads();
    for (int64_t i = threadIdx.x; i < t.width; i += BackwardThreads(kHeld)) {
      float sum = room[i];
      for (int w = 1; w < kWarps; ++w) sum += room[w * t.width + i];
      partial[i] = sum;
    }
  }
}

// Calls f with (pack, group, places of a lane) as constants. 8 lanes take heads of up to 128 bf16
// or 64 f32 values, a warp up to four times as many; wider ones are not held in registers. Heads
// that are not aligned are read value by value.
template <class S, class F>
void ByWidth(bool aligned, int64_t width, const F& f) {
  constexpr int kPack = 16 / sizeof(S);
  using Packed = std::integral_constant<int, kPack>;
  using Single = std::integral_constant<int, 1>;
  using Eight = std::integral_constant<int, 8>;
  using Warp = std::integral_constant<int, kWarp>;
  if (!aligned) {
    if (width <= 8 * kWarp) return f(Single(), Warp(), std::integral_constant<int, 4>());
    return f(Single(), Warp(), std::integral_constant<int, 0>());
  }
  if (width <= 2 * 8 * kPack) return f(Packed(), Eight(), Single());
  if (width <= 2 * kWarp * kPack) return f(Packed(), Warp(), Single());
  return f(Packed(), Warp(), std::integral_constant<int, 0>());
}

uint32_t CheckedItems(int64_t rows, int64_t heads) {
  OT_CHECK_LE(rows * heads, (int64_t{1} << 32) - 1) << "heads in one call of QK-norm and RoPE";
  return static_cast<uint32_t>(rows * heads);
}

}  // namespace

void QkNormRopeForward(const Context& context, const QkNormRopeForwardArgs& args) {
  ByActivation(args.x.dtype(), "QK-norm", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    const int64_t heads = args.x.dim(1), width = args.x.dim(2), half = width / 2;
    const ForwardTensors<S> tensors = {.x = args.x.data<S>(),
                                       .gain = args.gain.data<float>(),
                                       .cosines = args.tables.cos.data<float>(),
                                       .sines = args.tables.sin.data<float>(),
                                       .y = args.y.data<S>(),
                                       .rstd = args.rstd.data<float>(),
                                       .items = CheckedItems(args.x.dim(0), heads),
                                       .heads = static_cast<uint32_t>(heads),
                                       .length = static_cast<uint32_t>(args.tables.cos.dim(0)),
                                       .width = width,
                                       .eps = static_cast<float>(args.eps)};
    const bool aligned = FitsPacks<kPack>(tensors.x, half) && FitsPacks<kPack>(tensors.y, half) &&
                         FitsFloats<kPack>(tensors.gain, half) &&
                         FitsFloats<kPack>(tensors.cosines, half) &&
                         FitsFloats<kPack>(tensors.sines, half);
    ByWidth<S>(aligned, width, [&](auto pack, auto group, auto held) {
      constexpr int kGroup = decltype(group)::value;
      Launch("QkNormRopeForward", context,
             {.blocks = CeilDiv(tensors.items, int64_t{kThreads / kGroup} * kGroupHeads),
              .threads = kThreads},
             ForwardKernel<S, decltype(pack)::value, kGroup, decltype(held)::value>, tensors);
    });
  });
}

void QkNormRopeBackward(const Context& context, const QkNormRopeBackwardArgs& args) {
  ByActivation(args.x.dtype(), "QK-norm", [&](auto zero) {
    using S = decltype(zero);
    constexpr int kPack = 16 / sizeof(S);
    const int64_t rows = args.x.dim(0), heads = args.x.dim(1);
    const int64_t width = args.x.dim(2), half = width / 2;
    auto* partial = static_cast<float*>(
        context.Scratch(QkNormRopeBackwardScratch(rows, heads, width, args.x.dtype())));
    const BackwardTensors<S> tensors = {.dy = args.dy.data<S>(),
                                        .x = args.x.data<S>(),
                                        .gain = args.gain.data<float>(),
                                        .rstd = args.rstd.data<float>(),
                                        .cosines = args.tables.cos.data<float>(),
                                        .sines = args.tables.sin.data<float>(),
                                        .dx = args.dx.data<S>(),
                                        .partial = partial,
                                        .items = CheckedItems(rows, heads),
                                        .heads = static_cast<uint32_t>(heads),
                                        .length = static_cast<uint32_t>(args.tables.cos.dim(0)),
                                        .width = width};
    const bool aligned = FitsPacks<kPack>(tensors.dy, half) && FitsPacks<kPack>(tensors.x, half) &&
                         FitsPacks<kPack>(tensors.dx, half) &&
                         FitsFloats<kPack>(tensors.gain, half) &&
                         FitsFloats<kPack>(tensors.cosines, half) &&
                         FitsFloats<kPack>(tensors.sines, half) && FitsFloats<kPack>(partial, half);
    ByWidth<S>(aligned, width, [&](auto pack, auto group, auto held) {
      constexpr int kHeld = decltype(held)::value, kThreadsHere = BackwardThreads(kHeld);
      Launch("QkNormRopeBackward", context,
             {.blocks = RowBlocks(rows),
              .threads = kThreadsHere,
              .shared_bytes = kHeld > 0 ? SharedBytes<float>(kThreadsHere / kWarp * width) : 0},
             BackwardKernel<S, decltype(pack)::value, decltype(group)::value, kHeld>, tensors);
    });
    SumRows(context, partial, RowBlocks(rows), width, args.accumulate_dgain,
            args.dgain.data<float>());
  });
}

}  // namespace overtok::OT_BACKEND

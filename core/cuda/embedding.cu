// Row lookup and its gradient.
//
// Forward: a warp for each position. Bytes: T d of the table (random rows of 2 d or 4 d bytes) and
// of y, 4 T of ids; T d multiplications.
//
// Backward: (id, position) pairs are sorted by id (core/cuda/radix_sort.h), then a warp for each 32
// sorted pairs and stripe of columns adds the runs of equal ids that begin among them, each to its
// end, in ascending order of positions: the CPU's order, and its bits, since a sum is one chain of
// fused multiply-adds from the old contents on. Chains cannot be split without changing bits; a
// long one (an id of a third of all positions) keeps one warp for each stripe busy and leaves the
// others alone. What it waits for is memory, so that warp has up to 32 rows under way: about 25
// cycles a row, 0.6 ms for 43,000 rows of one id at 1.75 GHz. Bytes: T d of dy, each touched row of
// dtable read and written, 24 T for each pass of the sort; 2 T d FLOPs.
#include "core/cuda/kernels.h"
#include "core/cuda/radix_sort.h"
#include "core/ops/embedding.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kPairs = kWarp;  // sorted pairs of a warp

// R: storage of the table; S: of y.
template <int N, class S, class R>
__global__ void __launch_bounds__(kThreads)
    EmbeddingForwardKernel(const uint32_t* ids, const R* table, S* y, int64_t positions,
                           int64_t width, float scale) {
  const int64_t t = int64_t{blockIdx.x} * kWarps + WarpIndex();
  if (t >= positions) return;
  const uint32_t id = ids[t];
  S* out = y + t * width;
  if (id == kNoRow) {
    Pack<S, N> zeros;
    for (int i = 0; i < N; ++i) zeros.v[i] = FromFloat<S>(0.0F);
    for (int64_t at = int64_t{Lane()} * N; at < width; at += kWarp * N) StorePack(out + at, zeros);
    return;
  }
  const R* row = table + static_cast<int64_t>(id) * width;
  for (int64_t at = int64_t{Lane()} * N; at < width; at += kWarp * N) {
    const Pack<R, N> in = LoadPack<N>(row + at);
    Pack<S, N> scaled;
    for (int i = 0; i < N; ++i) scaled.v[i] = FromFloat<S>(scale * ToFloat(in.v[i]));
    StorePack(out + at, scaled);
  }
}

// Positions without a row get the id `rows`, which sorts behind all others.
__global__ void __launch_bounds__(kThreads)
    PairsKernel(const uint32_t* ids, int64_t positions, uint32_t rows, uint64_t* pairs) {
  const int64_t t = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (t >= positions) return;
  const uint32_t id = ids[t] == kNoRow ? rows : ids[t];
  pairs[t] = static_cast<uint64_t>(id) << 32 | static_cast<uint64_t>(t);
}

__device__ __forceinline__ uint32_t IdOf(uint64_t pair) {
  return static_cast<uint32_t>(pair >> 32);
}
__device__ __forceinline__ uint32_t PositionOf(uint64_t pair) {
  return static_cast<uint32_t>(pair);
}
__device__ __forceinline__ int LowestBit(unsigned bits) {
  return CountBits((bits & (~bits + 1U)) - 1U);
}

// A lane's N columns of dy.
template <int N, class S>
struct Columns {
  const S* dy;  // at the lane's first column
  int64_t width;
  float scale;
};

// Adds kRows rows, whose positions the lanes from `from` on hold, one after the other; all are
// loaded before the first is used. All lanes call.
template <int kRows, int N, class S>
__device__ __forceinline__ void AddRows(const Columns<N, S>& columns, uint32_t position, int from,
                                        float (&sum)[N]) {
  Pack<S, N> rows[kRows];
  OT_UNROLL
  for (int k = 0; k < kRows; ++k) {
    const int64_t row = Shuffle(position, from + k);
    rows[k] = LoadPack<N>(columns.dy + row * columns.width);
  }
  OT_UNROLL
  for (int k = 0; k < kRows; ++k) {
    for (int i = 0; i < N; ++i) sum[i] = fmaf(columns.scale, ToFloat(rows[k].v[i]), sum[i]);
  }
}
template <int N, class S>
__device__ __forceinline__ void AddAll(const Columns<N, S>& columns, uint32_t position, int from,
                                       int to, float (&sum)[N]) {
  constexpr int kMost = N * sizeof(S) > 8 ? 16 : 32;  // 64 registers
  for (; from + kMost <= to; from += kMost) AddRows<kMost>(columns, position, from, sum);
  for (; from + 4 <= to; from += 4) AddRows<4>(columns, position, from, sum);
  for (; from < to; ++from) AddRows<1>(columns, position, from, sum);
}

// blockIdx.x: kWarps times 32 pairs; blockIdx.y: stripe of 32 N columns. Two blocks a
// multiprocessor are asked for: for more, the compiler moves loads to where they are used.
template <int N, class S>
__global__ void __launch_bounds__(kThreads, 2)
    AddRunsKernel(const uint64_t* sorted, int64_t pairs, const S* dy, float* dtable, int64_t width,
                  uint32_t rows, float scale) {
  const int64_t begin = (int64_t{blockIdx.x} * kWarps + WarpIndex()) * kPairs;
  if (begin >= pairs) return;
  const int64_t column = (int64_t{blockIdx.y} * kWarp + Lane()) * N;
  const bool there = column < width;
  // Lanes behind the last column load what the last ones do, and store nothing.
  const Columns<N, S> columns = {dy + (there ? column : width - N), width, scale};
  const uint64_t none = static_cast<uint64_t>(rows) << 32;
  const auto pair_at = [&](int64_t at) { return at < pairs ? sorted[at] : none; };

  const uint64_t pair = pair_at(begin + Lane());
  const uint32_t id = IdOf(pair);
  uint32_t id_before = ShuffleUp(id, 1);
  if (Lane() == 0) id_before = begin == 0 ? kNoRow : IdOf(sorted[begin - 1]);
  const unsigned heads = VoteBallot(id != id_before && id < rows);
  const int last = CountBits(VoteBallot(id < rows));  // pairs that name a row are the first ones
  for (unsigned left = heads; left != 0; left &= left - 1) {
    const int from = LowestBit(left);
    const unsigned later = left & (left - 1);
    const int to = later != 0 ? LowestBit(later) : last;
    const uint32_t row = Shuffle(id, from);
    float* at = dtable + static_cast<int64_t>(row) * width + column;
    float sum[N] = {};
    if (there) {
      const Pack<float, N> old = LoadPack<N>(at);
      for (int i = 0; i < N; ++i) sum[i] = old.v[i];
    }
    AddAll(columns, PositionOf(pair), from, to, sum);
    if (to == kPairs) {  // may go on behind these 32
      uint64_t ahead = pair_at(begin + kPairs + Lane());
      for (int64_t next = begin + kPairs;; next += kPairs) {
        const uint64_t now = ahead;
        const int count = CountBits(VoteBallot(IdOf(now) == row));
        if (count == kPairs) ahead = pair_at(next + kPairs + Lane());
        AddAll(columns, PositionOf(now), 0, count, sum);
        if (count < kPairs) break;
      }
    }
    if (there) {
      Pack<float, N> total;
      for (int i = 0; i < N; ++i) total.v[i] = sum[i];
      StorePack(at, total);
    }
  }
}

template <int N, class S, class R>
void LookUp(const Context& context, const EmbeddingForwardArgs& args) {
  const int64_t positions = args.ids.elements();
  Launch("EmbeddingForward", context, {.blocks = CeilDiv(positions, kWarps), .threads = kThreads},
         EmbeddingForwardKernel<N, S, R>, args.ids.data<uint32_t>(), args.table.data<R>(),
         args.y.data<S>(), positions, args.table.dim(1), static_cast<float>(args.scale));
}

template <int N, class S>
void AddRuns(const Context& context, const EmbeddingBackwardArgs& args, const uint64_t* sorted) {
  const int64_t pairs = args.ids.elements(), width = args.dtable.dim(1);
  Launch("EmbeddingBackward", context,
         {.blocks = CeilDiv(pairs, int64_t{kWarps} * kPairs),
          .threads = kThreads,
          .blocks_y = CeilDiv(width, int64_t{kWarp} * N)},
         AddRunsKernel<N, S>, sorted, pairs, args.dy.data<S>(), args.dtable.data<float>(), width,
         static_cast<uint32_t>(args.dtable.dim(0)), static_cast<float>(args.scale));
}

}  // namespace

void EmbeddingForward(const Context& context, const EmbeddingForwardArgs& args) {
  ByActivation(args.table.dtype(), "embedding", [&](auto row_zero) {
    ByActivation(args.y.dtype(), "embedding", [&](auto zero) {
      using R = decltype(row_zero);
      using S = decltype(zero);
      constexpr int kPack = sizeof(R) + sizeof(S) == 4 ? 8 : 4;  // at most 16 bytes of either
      const int64_t width = args.table.dim(1);
      if (FitsPacks<kPack>(args.table.data<R>(), width) &&
          FitsPacks<kPack>(args.y.data<S>(), width)) {
        LookUp<kPack, S, R>(context, args);
      } else {
        LookUp<1, S, R>(context, args);
      }
    });
  });
}

void EmbeddingBackward(const Context& context, const EmbeddingBackwardArgs& args) {
  const int64_t positions = args.ids.elements(), rows = args.dtable.dim(0);
  OT_CHECK_LT(rows, int64_t{1} << 32) << "ids are 32-bit numbers";
  const int64_t bytes = EmbeddingBackwardScratch(positions);
  OT_CHECK_LE(2 * positions * 8 + RadixSortCounts(positions) * 4, bytes);
  auto* pairs = static_cast<uint64_t*>(context.Scratch(bytes));
  uint64_t* room = pairs + positions;
  auto* counts = reinterpret_cast<unsigned*>(room + positions);
  Launch("EmbeddingPairs", context, {.blocks = CeilDiv(positions, kThreads), .threads = kThreads},
         PairsKernel, args.ids.data<uint32_t>(), positions, static_cast<uint32_t>(rows), pairs);
  const uint64_t* sorted =
      RadixSort(context, pairs, room, counts, positions, static_cast<uint32_t>(rows));
  ByActivation(args.dy.dtype(), "embedding", [&](auto zero) {
    using S = decltype(zero);
    const int64_t width = args.dtable.dim(1);
    if (FitsPacks<4>(args.dy.data<S>(), width) && FitsPacks<4>(args.dtable.data<float>(), width)) {
      AddRuns<4, S>(context, args, sorted);
    } else {
      AddRuns<1, S>(context, args, sorted);
    }
  });
}

}  // namespace overtok::OT_BACKEND

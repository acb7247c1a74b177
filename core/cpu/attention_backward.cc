// Attention, backward: probabilities are recomputed tile by tile from lse (Dao 2023,
// FlashAttention-2, algorithm 2). A task is a window and a key/value head with its whole group of
// query heads, so that every sum is made by one thread in one order: query heads, then queries,
// then keys, all ascending. Where such tasks are few, each is divided into parts that sum the
// gradients of keys and values apart; these are added up in order at the end.
//
// B windows, S positions, H query heads, K key/value heads, D width of a head.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/attention_backward.cc"
#include "core/cpu/attention_layout.h"
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "hwy/foreach_target.h"
// After foreach_target.h, so that they see the target.
#include "core/cpu/attention-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// In place: scores -> probabilities, their gradients -> gradients of the scores.
template <class T>
void ScoreGradients(const Tile& tile, bool masked, const AttentionTiles<T>& tiles) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  for (int64_t i = 0; i < kQueryRows; i += lanes) {
    const int64_t keys = tile.KeysSeen(i + lanes);
    T *const p = tiles.p + i, *const ds = tiles.ds + i;
    const auto lse = hn::LoadU(d, tiles.largest + i), delta = hn::LoadU(d, tiles.delta + i);
    const auto first = hn::LoadU(d, tiles.first + i), last = hn::LoadU(d, tiles.last + i);
    for (int64_t j = 0; j < keys; ++j) {
      auto probability = ExpLanes(d, hn::Sub(hn::LoadU(d, p + j * kQueryRows), lse));
      auto gradient = hn::Mul(probability, hn::Sub(hn::LoadU(d, ds + j * kQueryRows), delta));
      if (masked) {
        const auto key = hn::Set(d, static_cast<T>(j));
        const auto seen = hn::And(hn::Le(first, key), hn::Le(key, last));
        probability = hn::IfThenElseZero(seen, probability);
        gradient = hn::IfThenElseZero(seen, gradient);
      }
      hn::StoreU(probability, d, p + j * kQueryRows);
      hn::StoreU(gradient, d, ds + j * kQueryRows);
    }
    for (int64_t j = keys; j < tile.keys; ++j) {
      hn::StoreU(hn::Zero(d), d, p + j * kQueryRows);
      hn::StoreU(hn::Zero(d), d, ds + j * kQueryRows);
    }
  }
}

// delta[i] = sum over D of o * dout.
template <class S, class T>
void OutputDots(const S* o, int64_t o_row, const T* dout, int64_t row, int64_t rows, int64_t width,
                T* delta) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  for (int64_t i = 0; i < rows; ++i) {
    auto sum = hn::Zero(d);
    for (int64_t c = 0; c < width; c += lanes) {
      const auto value = LoadFirst(d, o + i * o_row + c, std::min(lanes, width - c));
      sum = hn::MulAdd(value, hn::LoadU(d, dout + i * row + c), sum);
    }
    delta[i] = Sum(d, sum);
  }
  std::fill(delta + rows, delta + kQueryRows, T(0));
}

template <class S>
void BackwardQueries(const AttentionBackwardArgs& args, int64_t b, int64_t h, int64_t i0,
                     const AttentionTiles<ComputeOf<S>>& tiles) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t length = args.segments.dim(1), heads = args.q.dim(1), width = args.q.dim(2);
  const int64_t row = PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
  const int64_t rows = std::min(kQueryRows, length - i0);
  const int64_t offset = ((b * length + i0) * heads + h) * width;
  const T scale = static_cast<T>(args.scale);
  LoadRows(args.q.data<S>() + offset, heads * width, rows, width, scale, tiles.q, row, kQueryRows);
  LoadRows(args.dout.data<S>() + offset, heads * width, rows, width, T(1), tiles.dout, row,
           kQueryRows);
  Transpose(tiles.q, row, tiles.q_transposed);
  Transpose(tiles.dout, row, tiles.dout_transposed);
  OutputDots(args.o.data<S>() + offset, heads * width, tiles.dout, row, rows, width, tiles.delta);
  const T* const lse = args.lse.data<T>() + (b * heads + h) * length + i0;
  std::copy_n(lse, rows, tiles.largest);
  std::fill(tiles.largest + rows, tiles.largest + kQueryRows, T(0));
  bool first_tile = true;
  ForTiles(i0, length, tiles.start, [&](const Tile& tile) {
    Scores(tile, tiles.k, row, width, tiles.q_transposed, tiles.p);
    Scores(tile, tiles.v, row, width, tiles.dout_transposed, tiles.ds);
    const bool masked = tile.Masked();
    if (masked) tile.Bounds(tiles.first, tiles.last);
    ScoreGradients(tile, masked, tiles);
    const auto by_keys = [&](int64_t first, int64_t) { return tile.ByKeys(first); };
    TileProduct(d, tile.keys, row, TileOperand<T>{tiles.p, kQueryRows, 1}, tiles.dout, row,
                tiles.dv + tile.j0 * row, row, true, by_keys);
    TileProduct(d, tile.keys, row, TileOperand<T>{tiles.ds, kQueryRows, 1}, tiles.q, row,
                tiles.dk + tile.j0 * row, row, true, by_keys);
    TileProduct(d, rows, row, TileOperand<T>{tiles.ds, 1, kQueryRows}, tiles.k + tile.j0 * row, row,
                tiles.o, row, !first_tile,
                [&](int64_t first, int64_t last) { return tile.ByQueries(first, last); });
    first_tile = false;
  });
  S* const dq = args.dq.data<S>() + offset;
  for (int64_t i = 0; i < rows; ++i) {
    StoreRow(tiles.o + i * row, width, scale, dq + i * heads * width);
  }
}

// dk and dv of one position of a window and key/value head: the sum of `parts` gradients that lie
// `part` elements apart, into the first of them, then to storage.
template <class S, class T>
void StoreSum(T* gradient, int64_t parts, int64_t part, int64_t row, int64_t width, S* to) {
  const hn::ScalableTag<T> d;
  for (int64_t p = 1; p < parts; ++p) {
    for (int64_t c = 0; c < row; c += LanesOf(d)) {
      const auto sum = hn::LoadU(d, gradient + c);
      hn::StoreU(hn::Add(sum, hn::LoadU(d, gradient + p * part + c)), d, gradient + c);
    }
  }
  StoreRow(gradient, width, T(1), to);
}

template <class S>
void Backward(const Context& context, const AttentionBackwardArgs& args) {
  using T = ComputeOf<S>;
  const int64_t batch = args.segments.dim(0), length = args.segments.dim(1);
  const int64_t heads = args.q.dim(1), kv_heads = args.k.dim(1), width = args.q.dim(2);
  const int64_t group = heads / kv_heads;
  const int64_t row = PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
  const int64_t each = AttentionBytesPerThread<T>(length, width);
  const int64_t bytes = AttentionScratchBytes<T>(batch, length, heads, kv_heads, width);
  char* const scratch = static_cast<char*>(context.Scratch(bytes));
  const int64_t parts = BackwardParts(batch, length, heads, kv_heads);
  const int64_t part_elements = PartElements<T>(length, width);
  T* const partial = reinterpret_cast<T*>(scratch + each * Threads());  // unused by one part
  const int64_t blocks = (length + kQueryRows - 1) / kQueryRows, stride = kv_heads * width;
  S *const dk = args.dk.data<S>(), *const dv = args.dv.data<S>();

  ParallelTasks(batch * kv_heads * parts, [&](int64_t task) {
    const int64_t part = task % parts;
    const int64_t b = task / parts / kv_heads, kv = task / parts % kv_heads;
    AttentionTiles<T> tiles;
    tiles.Carve(scratch + omp_get_thread_num() * each, length, width);
    if (parts > 1) {
      tiles.dk = partial + task * part_elements;
      tiles.dv = tiles.dk + length * row;
    }
    FindStarts(args.segments.data<int32_t>() + b * length, length, tiles.start);
    const int64_t offset = (b * length * kv_heads + kv) * width;
    LoadRows(args.k.data<S>() + offset, stride, length, width, T(1), tiles.k, row, length);
    LoadRows(args.v.data<S>() + offset, stride, length, width, T(1), tiles.v, row, length);
    std::fill_n(tiles.dk, length * row, T(0));
    std::fill_n(tiles.dv, length * row, T(0));
    for (int64_t unit = part; unit < group * blocks; unit += parts) {
      BackwardQueries<S>(args, b, kv * group + unit / blocks, unit % blocks * kQueryRows, tiles);
    }
    if (parts > 1) return;
    for (int64_t j = 0; j < length; ++j) {
      StoreRow(tiles.dk + j * row, width, T(1), dk + offset + j * stride);
      StoreRow(tiles.dv + j * row, width, T(1), dv + offset + j * stride);
    }
  });
  if (parts == 1) return;
  ParallelFor(batch * kv_heads * length, 64, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const int64_t task = index / length, j = index % length;
      const int64_t to = ((task / kv_heads * length + j) * kv_heads + task % kv_heads) * width;
      T* const gradient = partial + task * parts * part_elements + j * row;
      StoreSum(gradient, parts, part_elements, row, width, dk + to);
      StoreSum(gradient + length * row, parts, part_elements, row, width, dv + to);
    }
  });
}

void AttentionBackward(const Context& context, const AttentionBackwardArgs& args) {
  ByStorage(args.q.dtype(), [&](auto storage) { Backward<decltype(storage)>(context, args); });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(AttentionBackward);
void AttentionBackward(const Context& context, const AttentionBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(AttentionBackward)(context, args);
}

}  // namespace overtok::cpu
#endif

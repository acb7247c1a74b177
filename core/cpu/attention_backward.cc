// Attention, backward: probabilities are recomputed tile by tile from lse (Dao 2023,
// FlashAttention-2, algorithm 2). A thread owns a window and a key/value head with its whole group
// of query heads, so that every sum is made by one thread in one order: query heads, then queries,
// then keys, all ascending.
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

template <class S>
void Backward(const Context& context, const AttentionBackwardArgs& args) {
  using T = ComputeOf<S>;
  const int64_t batch = args.segments.dim(0), length = args.segments.dim(1);
  const int64_t kv_heads = args.k.dim(1), width = args.q.dim(2);
  const int64_t group = args.q.dim(1) / kv_heads;
  const int64_t row = PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
  const int64_t each = AttentionBytesPerThread<T>(length, width);
  char* const scratch = static_cast<char*>(context.Scratch(each * Threads()));
  ParallelTasks(batch * kv_heads, [&](int64_t task) {
    const int64_t b = task / kv_heads, kv = task % kv_heads;
    AttentionTiles<T> tiles;
    tiles.Carve(scratch + omp_get_thread_num() * each, length, width);
    FindStarts(args.segments.data<int32_t>() + b * length, length, tiles.start);
    const int64_t offset = (b * length * kv_heads + kv) * width, stride = kv_heads * width;
    LoadRows(args.k.data<S>() + offset, stride, length, width, T(1), tiles.k, row, length);
    LoadRows(args.v.data<S>() + offset, stride, length, width, T(1), tiles.v, row, length);
    std::fill_n(tiles.dk, length * row, T(0));
    std::fill_n(tiles.dv, length * row, T(0));
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
      for (int64_t i0 = 0; i0 < length; i0 += kQueryRows) {
        BackwardQueries<S>(args, b, h, i0, tiles);
      }
    }
    for (int64_t j = 0; j < length; ++j) {
      StoreRow(tiles.dk + j * row, width, T(1), args.dk.data<S>() + offset + j * stride);
      StoreRow(tiles.dv + j * row, width, T(1), args.dv.data<S>() + offset + j * stride);
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

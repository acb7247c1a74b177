// Attention, forward: tiles of 64 queries by 64 keys, softmax carried along the keys (Dao 2023,
// FlashAttention-2, algorithm 1). Scores exist for one tile at a time. Tiles that no query attends
// to (above the diagonal, across documents) are never visited.
//
// B windows, S positions, H query heads, K key/value heads, D width of a head.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/attention_forward.cc"
#include "core/cpu/attention_layout.h"
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "hwy/foreach_target.h"
// After foreach_target.h, so that they see the target.
#include "core/cpu/attention-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// Scores -> exp(score - new maximum) in place; carries maximum and sum; leaves in `delta` what the
// earlier output has to be multiplied by.
template <class T>
void Softmax(const Tile& tile, bool masked, const AttentionTiles<T>& tiles) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto none = hn::Set(d, -std::numeric_limits<T>::infinity());
  for (int64_t i = 0; i < kQueryRows; i += lanes) {
    const int64_t keys = tile.KeysSeen(i + lanes);
    T* const p = tiles.p + i;
    const auto before = hn::LoadU(d, tiles.largest + i);
    auto largest = before;
    if (masked) {
      const auto first = hn::LoadU(d, tiles.first + i), last = hn::LoadU(d, tiles.last + i);
      for (int64_t j = 0; j < keys; ++j) {
        const auto key = hn::Set(d, static_cast<T>(j));
        const auto seen = hn::And(hn::Le(first, key), hn::Le(key, last));
        const auto score = hn::IfThenElse(seen, hn::LoadU(d, p + j * kQueryRows), none);
        hn::StoreU(score, d, p + j * kQueryRows);
        largest = hn::Max(largest, score);
      }
    } else {
      for (int64_t j = 0; j < keys; ++j)
        largest = hn::Max(largest, hn::LoadU(d, p + j * kQueryRows));
    }
    // A query that has seen no key yet: 0 instead of -inf, lest -inf - -inf be NaN.
    const auto zero_point = hn::IfThenZeroElse(hn::Eq(largest, none), largest);
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < keys; ++j) {
      const auto e = ExpLanes(d, hn::Sub(hn::LoadU(d, p + j * kQueryRows), zero_point));
      hn::StoreU(e, d, p + j * kQueryRows);
      sum = hn::Add(sum, e);
    }
    for (int64_t j = keys; j < tile.keys; ++j) hn::StoreU(hn::Zero(d), d, p + j * kQueryRows);
    const auto factor = ExpLanes(d, hn::Sub(before, zero_point));
    hn::StoreU(largest, d, tiles.largest + i);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, tiles.sum + i), factor, sum), d, tiles.sum + i);
    hn::StoreU(factor, d, tiles.delta + i);
  }
}

template <class T>
void ScaleRows(const T* factors, int64_t rows, int64_t row, T* o) {
  const hn::ScalableTag<T> d;
  for (int64_t i = 0; i < rows; ++i) {
    if (factors[i] == T(1)) continue;
    const auto factor = hn::Set(d, factors[i]);
    for (int64_t c = 0; c < row; c += LanesOf(d)) {
      hn::StoreU(hn::Mul(factor, hn::LoadU(d, o + i * row + c)), d, o + i * row + c);
    }
  }
}

// The queries from i0 of one head of one window, whose keys and values are in scratch.
template <class S>
void ForwardQueries(const AttentionForwardArgs& args, int64_t b, int64_t h, int64_t i0,
                    const AttentionTiles<ComputeOf<S>>& tiles) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t length = args.segments.dim(1), heads = args.q.dim(1), width = args.q.dim(2);
  const int64_t row = PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
  const int64_t rows = std::min(kQueryRows, length - i0);
  const int64_t offset = ((b * length + i0) * heads + h) * width;
  LoadRows(args.q.data<S>() + offset, heads * width, rows, width, static_cast<T>(args.scale),
           tiles.q, row, kQueryRows);
  Transpose(tiles.q, row, tiles.q_transposed);
  std::fill_n(tiles.largest, kQueryRows, -std::numeric_limits<T>::infinity());
  std::fill_n(tiles.sum, kQueryRows, T(0));
  bool first_tile = true;
  ForTiles(i0, length, tiles.start, [&](const Tile& tile) {
    Scores(tile, tiles.k, row, width, tiles.q_transposed, tiles.p);
    const bool masked = tile.Masked();
    if (masked) tile.Bounds(tiles.first, tiles.last);
    Softmax(tile, masked, tiles);
    if (!first_tile) ScaleRows(tiles.delta, rows, row, tiles.o);
    TileProduct(d, rows, row, TileOperand<T>{tiles.p, 1, kQueryRows}, tiles.v + tile.j0 * row, row,
                tiles.o, row, !first_tile,
                [&](int64_t first, int64_t last) { return tile.ByQueries(first, last); });
    first_tile = false;
  });
  S* const o = args.o.data<S>() + offset;
  T* const lse = args.lse.data<T>() + (b * heads + h) * length + i0;
  for (int64_t i = 0; i < rows; ++i) {
    StoreRow(tiles.o + i * row, width, T(1) / tiles.sum[i], o + i * heads * width);
  }
  for (int64_t i = 0; i < kQueryRows; i += LanesOf(d)) {  // `delta` is free by now
    hn::StoreU(hn::Add(hn::LoadU(d, tiles.largest + i), hn::Log(d, hn::LoadU(d, tiles.sum + i))), d,
               tiles.delta + i);
  }
  std::memcpy(lse, tiles.delta, static_cast<size_t>(rows) * sizeof(T));
}

template <class S>
void Forward(const Context& context, const AttentionForwardArgs& args) {
  using T = ComputeOf<S>;
  const int64_t batch = args.segments.dim(0), length = args.segments.dim(1);
  const int64_t heads = args.q.dim(1), kv_heads = args.k.dim(1), width = args.q.dim(2);
  const int64_t group = heads / kv_heads;
  const int64_t row = PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
  const int64_t each = AttentionBytesPerThread<T>(length, width);
  char* const scratch = static_cast<char*>(context.Scratch(each * Threads()));
  // A task is a window and a key/value head, whose keys and values it converts once; where there
  // are too few, each is dealt out in blocks of queries. No result depends on the deal.
  const int64_t blocks = (length + kQueryRows - 1) / kQueryRows;
  const int64_t wanted = (4 * Threads() + batch * kv_heads - 1) / (batch * kv_heads);
  const int64_t deals = std::clamp<int64_t>(wanted, 1, blocks);
  ParallelTasks(batch * kv_heads * deals, [&](int64_t task) {
    // The most expensive queries, those at the end, first.
    const int64_t deal = deals - 1 - task % deals;
    const int64_t b = task / deals / kv_heads, kv = task / deals % kv_heads;
    AttentionTiles<T> tiles;
    tiles.Carve(scratch + omp_get_thread_num() * each, length, width);
    FindStarts(args.segments.data<int32_t>() + b * length, length, tiles.start);
    const int64_t offset = (b * length * kv_heads + kv) * width;
    LoadRows(args.k.data<S>() + offset, kv_heads * width, length, width, T(1), tiles.k, row,
             length);
    LoadRows(args.v.data<S>() + offset, kv_heads * width, length, width, T(1), tiles.v, row,
             length);
    for (int64_t block = deal; block < blocks; block += deals) {
      for (int64_t h = kv * group; h < (kv + 1) * group; ++h) {
        ForwardQueries<S>(args, b, h, block * kQueryRows, tiles);
      }
    }
  });
}

void AttentionForward(const Context& context, const AttentionForwardArgs& args) {
  ByStorage(args.q.dtype(), [&](auto storage) { Forward<decltype(storage)>(context, args); });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(AttentionForward);
void AttentionForward(const Context& context, const AttentionForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(AttentionForward)(context, args);
}

}  // namespace overtok::cpu
#endif

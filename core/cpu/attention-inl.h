// What both directions of attention share, per Highway target: tiles in and out of scratch, which
// keys a tile of queries may attend to, and the parts of a tile that can be non-zero.
//
// Scores are kept transposed, [keys, queries]: softmax then runs down columns, one query per lane,
// without a horizontal reduction, and K and V are read as they lie.
#if defined(OVERTOK_CORE_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_ATTENTION_INL_H_
#undef OVERTOK_CORE_CPU_ATTENTION_INL_H_
#else
#define OVERTOK_CORE_CPU_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/cpu/attention_layout.h"
#include "core/cpu/simd-inl.h"
#include "core/cpu/tile_product-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// to[r, :] = factor * from[r, :] for `rows` rows of `width`, `from_row` and `to_row` elements
// apart; the padding of a row and rows up to `padded_rows` become zeros.
template <class S, class T>
void LoadRows(const S* from, int64_t from_row, int64_t rows, int64_t width, T factor, T* to,
              int64_t to_row, int64_t padded_rows) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto scale = hn::Set(d, factor);
  for (int64_t r = 0; r < rows; ++r) {
    int64_t c = 0;
    for (; c < width; c += lanes) {
      const auto value = LoadFirst(d, from + r * from_row + c, std::min(lanes, width - c));
      hn::StoreU(hn::Mul(value, scale), d, to + r * to_row + c);
    }
    for (; c < to_row; c += lanes) hn::StoreU(hn::Zero(d), d, to + r * to_row + c);
  }
  if (padded_rows > rows) {
    std::memset(to + rows * to_row, 0,
                static_cast<size_t>((padded_rows - rows) * to_row) * sizeof(T));
  }
}

// to[r, :] = factor * from[r, :width], rounded to storage.
template <class S, class T>
void StoreRow(const T* from, int64_t width, T factor, S* to) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto scale = hn::Set(d, factor);
  for (int64_t c = 0; c < width; c += lanes) {
    StoreFirst(d, hn::Mul(hn::LoadU(d, from + c), scale), to + c, std::min(lanes, width - c));
  }
}

// to[c, r] = from[r, c]: `from` is [kQueryRows, columns], columns a multiple of 4.
template <class T>
void TransposeOneByOne(const T* from, int64_t columns, T* to) {
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < kQueryRows; ++r) to[c * kQueryRows + r] = from[r * columns + c];
  }
}
inline void Transpose(const double* from, int64_t columns, double* to) {
  TransposeOneByOne(from, columns, to);
}
#if HWY_TARGET == HWY_SCALAR
inline void Transpose(const float* from, int64_t columns, float* to) {
  TransposeOneByOne(from, columns, to);
}
#else
inline void Transpose(const float* from, int64_t columns, float* to) {
  const hn::FixedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> wide;
  for (int64_t r = 0; r < kQueryRows; r += 4) {
    const float* const rows = from + r * columns;
    for (int64_t c = 0; c < columns; c += 4) {
      const auto r0 = hn::LoadU(d, rows + c);
      const auto r1 = hn::LoadU(d, rows + columns + c);
      const auto r2 = hn::LoadU(d, rows + 2 * columns + c);
      const auto r3 = hn::LoadU(d, rows + 3 * columns + c);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
      const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
      const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
      float* const out = to + c * kQueryRows + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + kQueryRows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d,
                 out + 2 * kQueryRows);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d,
                 out + 3 * kQueryRows);
    }
  }
}
#endif

// start[i] = first position of i's document.
inline void FindStarts(const int32_t* segments, int64_t length, int32_t* start) {
  int32_t first = 0;
  for (int64_t i = 0; i < length; ++i) {
    if (i > 0 && segments[i] != segments[i - 1]) first = static_cast<int32_t>(i);
    start[i] = first;
  }
}

// One tile of queries [i0, i0 + rows) and keys [j0, j0 + keys). Nothing else of attention's mask is
// known elsewhere: query i attends to keys start[i] to i.
struct Tile {
  int64_t i0, rows, j0, keys;
  const int32_t* start;

  bool Masked() const { return j0 + keys - 1 > i0 || start[i0 + rows - 1] > j0; }

  // Of [keys, queries] = [keys, width] [width, queries]: a key is seen by later queries only.
  TileRange Scores(int64_t first_key, int64_t width) const {
    return {0, width, std::clamp<int64_t>(j0 + first_key - i0, 0, kQueryRows - 1)};
  }
  // Of [queries, width] += [queries, keys] [keys, width].
  TileRange ByQueries(int64_t first_query, int64_t last_query) const {
    const int64_t last = std::clamp<int64_t>(i0 + last_query - j0, 0, keys);
    return {std::clamp<int64_t>(start[i0 + first_query] - j0, 0, last), last, 0};
  }
  // Of [keys, width] += [keys, queries] [queries, width].
  TileRange ByKeys(int64_t first_key) const {
    return {std::clamp<int64_t>(j0 + first_key - i0, 0, rows), rows, 0};
  }
  // Keys that the lanes of queries before `last_query` can see at most.
  int64_t KeysSeen(int64_t last_query) const {
    return std::clamp<int64_t>(i0 + last_query - j0, 0, keys);
  }
  // Per query the keys of the tile it attends to: [first, last]; none for padding.
  template <class T>
  void Bounds(T* first, T* last) const {
    for (int64_t i = 0; i < kQueryRows; ++i) {
      const bool padding = i >= rows;
      first[i] = padding ? T(0) : static_cast<T>(std::max<int64_t>(start[i0 + i] - j0, 0));
      last[i] = padding ? T(-1) : static_cast<T>(i0 + i - j0);
    }
  }
};

// body(tile) for the tiles of the queries from i0, keys ascending, none that no query attends to.
template <class Body>
HWY_INLINE void ForTiles(int64_t i0, int64_t length, const int32_t* start, const Body& body) {
  const int64_t rows = std::min(kQueryRows, length - i0);
  for (int64_t j0 = start[i0]; j0 < i0 + rows; j0 += kKeyRows) {
    body(Tile{i0, rows, j0, std::min(kKeyRows, i0 + rows - j0), start});
  }
}

// p[keys, queries] = k q^T for the tile.
template <class T>
HWY_INLINE void Scores(const Tile& tile, const T* keys, int64_t row, int64_t width,
                       const T* queries_transposed, T* p) {
  const hn::ScalableTag<T> d;
  TileProduct(d, tile.keys, kQueryRows, TileOperand<T>{keys + tile.j0 * row, row, 1},
              queries_transposed, kQueryRows, p, kQueryRows, false,
              [&](int64_t first, int64_t) { return tile.Scores(first, width); });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

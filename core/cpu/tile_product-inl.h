// Products of small tiles that lie in the cache: c (+)= a b, where a may be read either way round
// (strides), rows of b and c are contiguous, and each group of rows may be restricted to the terms
// and columns that can be non-zero (the triangle of causal attention). One block of registers per
// group of rows; nothing is packed. Included once per Highway target.
#if defined(OVERTOK_CORE_CPU_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_TILE_PRODUCT_INL_H_
#undef OVERTOK_CORE_CPU_TILE_PRODUCT_INL_H_
#else
#define OVERTOK_CORE_CPU_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows and vectors of c held in registers: 24 of 32 with AVX-512, 12 of 16 below.
constexpr int kGroupRows = 6;
constexpr int kGroupVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// a(row, term) at row * row_stride + term * term_stride.
template <class T>
struct TileOperand {
  const T* data;
  int64_t row_stride, term_stride;
};

// The part of a product that a group of rows needs: terms [first, last), columns from `column`.
struct TileRange {
  int64_t first, last, column;
};

template <int kRows, int kVectors, class D, class T>
HWY_INLINE void RegisterBlock(D d, const T* HWY_RESTRICT a, int64_t a_row, int64_t a_term,
                              const T* HWY_RESTRICT b, int64_t b_row, T* HWY_RESTRICT c,
                              int64_t c_row, int64_t terms, bool accumulate) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  hn::Vec<D> sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? hn::LoadU(d, c + r * c_row + v * lanes) : hn::Zero(d);
    }
  }
  for (int64_t k = 0; k < terms; ++k) {
    hn::Vec<D> columns[kVectors];
    for (int v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, b + k * b_row + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const auto factor = hn::Set(d, a[r * a_row + k * a_term]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(factor, columns[v], sum[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, c + r * c_row + v * lanes);
  }
}

template <int kRows, class D, class T>
void RowGroup(D d, TileOperand<T> a, const T* b, int64_t b_row, T* c, int64_t c_row,
              int64_t columns, TileRange range, bool accumulate) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const T* const from = a.data + range.first * a.term_stride;
  const T* const rows = b + range.first * b_row;
  const int64_t terms = range.last - range.first;
  int64_t j = range.column / lanes * lanes;
  for (; j + kGroupVectors * lanes <= columns; j += kGroupVectors * lanes) {
    RegisterBlock<kRows, kGroupVectors>(d, from, a.row_stride, a.term_stride, rows + j, b_row,
                                        c + j, c_row, terms, accumulate);
  }
  if constexpr (kGroupVectors > 2) {
    if (j + 3 * lanes <= columns) {
      RegisterBlock<kRows, 3>(d, from, a.row_stride, a.term_stride, rows + j, b_row, c + j, c_row,
                              terms, accumulate);
      j += 3 * lanes;
    }
    if (j + 2 * lanes <= columns) {
      RegisterBlock<kRows, 2>(d, from, a.row_stride, a.term_stride, rows + j, b_row, c + j, c_row,
                              terms, accumulate);
      j += 2 * lanes;
    }
  }
  if (j < columns) {
    RegisterBlock<kRows, 1>(d, from, a.row_stride, a.term_stride, rows + j, b_row, c + j, c_row,
                            terms, accumulate);
  }
}

// c[rows, columns] (+)= a[rows, terms] b[terms, columns]; `columns` is a multiple of the lanes.
// range(first_row, last_row) names what rows [first_row, last_row) need; other elements of c are
// left alone (or, within a vector or group, hold the full sum).
template <class D, class T, class Range>
void TileProduct(D d, int64_t rows, int64_t columns, TileOperand<T> a, const T* b, int64_t b_row,
                 T* c, int64_t c_row, bool accumulate, const Range& range) {
  int64_t i = 0;
  while (i < rows) {
    const int64_t count = std::min<int64_t>(kGroupRows, rows - i);
    const TileRange r = range(i, i + count);
    const TileOperand<T> group{a.data + i * a.row_stride, a.row_stride, a.term_stride};
    T* const to = c + i * c_row;
    switch (count) {
      case 6:
        RowGroup<6>(d, group, b, b_row, to, c_row, columns, r, accumulate);
        break;
      case 5:
        RowGroup<5>(d, group, b, b_row, to, c_row, columns, r, accumulate);
        break;
      case 4:
        RowGroup<4>(d, group, b, b_row, to, c_row, columns, r, accumulate);
        break;
      case 3:
        RowGroup<3>(d, group, b, b_row, to, c_row, columns, r, accumulate);
        break;
      case 2:
        RowGroup<2>(d, group, b, b_row, to, c_row, columns, r, accumulate);
        break;
      default:
        RowGroup<1>(d, group, b, b_row, to, c_row, columns, r, accumulate);
    }
    i += count;
  }
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

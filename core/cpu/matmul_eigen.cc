// Matrix products of any dtypes on any processor: tiles of the operands are copied to f32 (f64 for
// f64), Eigen multiplies them, and each tile of the result is rounded once. What bf16 means is what
// it means everywhere: bf16 operands, fp32 accumulation. No operand is ever converted as a whole.
//
// i, j, k: rows and columns of the result, terms of its sums.
#define EIGEN_DONT_PARALLELIZE  // the tiles are divided over threads here
#include <Eigen/Core>
#include <algorithm>
#include <memory>

#include "core/cpu/matmul.h"
#include "core/cpu/parallel.h"

namespace overtok::cpu {
namespace {

// Bytes of the tiles of a and b: within Eigen's limit for blocks on the stack (128 KiB), so that
// nothing is allocated in a product.
constexpr int64_t kTileRows = 128, kTileColumns = 128;
template <class Math>
constexpr int64_t kTileTerms = 128 * 1024 / (128 * static_cast<int64_t>(sizeof(Math)));

template <class Math>
using Matrix = Eigen::Matrix<Math, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Math>
struct Tiles {
  alignas(64) Math a[kTileRows * kTileTerms<Math>];
  alignas(64) Math b[kTileTerms<Math> * kTileColumns];
  alignas(64) Math c[kTileRows * kTileColumns];
};

// to[i, k] = from[i * row + k * column], rows of `columns` elements; walks memory in its order.
template <class Math, class T>
void Load(const T* from, int64_t row, int64_t column, int64_t rows, int64_t columns, Math* to) {
  if (column == 1) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < columns; ++k) {
        to[i * columns + k] = static_cast<Math>(from[i * row + k]);
      }
    }
    return;
  }
  constexpr int64_t kBlock = 16;  // rows written to while their lines stay in the first-level cache
  for (int64_t first = 0; first < rows; first += kBlock) {
    const int64_t last = std::min(rows, first + kBlock);
    for (int64_t k = 0; k < columns; ++k) {
      for (int64_t i = first; i < last; ++i) {
        to[i * columns + k] = static_cast<Math>(from[i * row + k * column]);
      }
    }
  }
}

template <class T, class Result, class Math>
void MultiplyTile(const Product& p, const T* a, const T* b, Result* c, int64_t i, int64_t j,
                  Tiles<Math>* tiles) {
  const int64_t rows = std::min(kTileRows, p.m - i), columns = std::min(kTileColumns, p.n - j);
  Eigen::Map<Matrix<Math>> sum(tiles->c, rows, columns);
  sum.setZero();
  for (int64_t k = 0; k < p.k; k += kTileTerms<Math>) {
    const int64_t terms = std::min(kTileTerms<Math>, p.k - k);
    Load(a + i * p.a_row + k * p.a_column, p.a_row, p.a_column, rows, terms, tiles->a);
    Load(b + k * p.b_row + j * p.b_column, p.b_row, p.b_column, terms, columns, tiles->b);
    sum.noalias() += Eigen::Map<const Matrix<Math>>(tiles->a, rows, terms) *
                     Eigen::Map<const Matrix<Math>>(tiles->b, terms, columns);
  }
  const Math alpha = static_cast<Math>(p.alpha);
  for (int64_t r = 0; r < rows; ++r) {
    Result* const to = c + (i + r) * p.c_row + j;
    for (int64_t s = 0; s < columns; ++s) {
      const Math value = alpha * tiles->c[r * columns + s];
      to[s] = static_cast<Result>(p.accumulate ? static_cast<Math>(to[s]) + value : value);
    }
  }
}

template <class T, class Result, class Math>
void Multiply(const Product& p) {
  const int64_t across = (p.n + kTileColumns - 1) / kTileColumns;
  const int64_t down = (p.m + kTileRows - 1) / kTileRows;
  ParallelFor(p.batch * down * across, 1, [&](int64_t begin, int64_t end) {
    // Kept per thread: as large as a thread's stack may bear, and needed in every call.
    thread_local std::unique_ptr<Tiles<Math>> tiles = std::make_unique<Tiles<Math>>();
    for (int64_t task = begin; task < end; ++task) {
      const int64_t index = task / (down * across), tile = task % (down * across);
      MultiplyTile(p, static_cast<const T*>(p.a) + index * p.a_batch,
                   static_cast<const T*>(p.b) + index * p.b_batch,
                   static_cast<Result*>(p.c) + index * p.c_batch, tile / across * kTileRows,
                   tile % across * kTileColumns, tiles.get());
    }
  });
}

}  // namespace

void TiledProduct(const Product& product) {
  if (product.operand == DType::kF64) return Multiply<double, double, double>(product);
  if (product.operand == DType::kF32) return Multiply<float, float, float>(product);
  if (product.result == DType::kF32) return Multiply<bf16, float, float>(product);
  Multiply<bf16, bf16, float>(product);
}

}  // namespace overtok::cpu

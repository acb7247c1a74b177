// What the kernels over table rows share. A warp works on a row: its 32 lanes stride over the
// columns in packs of 4 elements (2, or single ones, where the width or a start is no multiple, as
// with widths of 170 and 341: then every access of the warp still is one stretch of memory). Rows
// lie anywhere, so that bandwidth comes from many rows under way: 8 warps a block, no barriers of
// the block.
#pragma once

#include <cfloat>
#include <type_traits>

#include "core/cuda/kernels.h"
#include "core/ops/embedding.h"
#include "core/philox.h"
#include "core/sharded_rows.h"

namespace overtok::OT_BACKEND {

inline constexpr int kTableWarps = 8;
inline constexpr int kTableThreads = kTableWarps * kWarp;

// A TableState in kernels: null pointers where there is no such state.
template <class S>
struct TablePointers {
  S* value;
  float* m;
  float* v;
  uint32_t* last;
  int64_t width;
  bool by_row;  // v is [R]
  const uint32_t* numbers;
  Sharding sharding;
  int64_t logical_rows;

  explicit TablePointers(const TableState& state)
      : value(state.value.data<S>()),
        m(state.m.defined() ? state.m.data<float>() : nullptr),
        v(state.v.defined() ? state.v.data<float>() : nullptr),
        last(state.last.defined() ? state.last.data<uint32_t>() : nullptr),
        width(state.value.dim(1)),
        by_row(state.v.defined() && state.v.rank() == 1),
        numbers(state.numbers.defined() ? state.numbers.data<uint32_t>() : nullptr),
        sharding(state.sharding),
        logical_rows(state.logical_rows) {}
};

// Whether rows of a table and of `other` (gradient or result) can be read in packs of N.
template <int N, class S, class T>
bool RowsFitPacks(const TablePointers<S>& table, const T* other) {
  return FitsPacks<N>(table.value, table.width) && FitsPacks<N>(other, table.width) &&
         FitsPacks<N>(table.m, table.width) && (table.by_row || FitsPacks<N>(table.v, table.width));
}
// Calls f with std::integral_constant<int, N>.
template <class S, class T, class F>
void ByRowPack(const TablePointers<S>& table, const T* other, const F& f) {
  if (RowsFitPacks<4>(table, other)) return f(std::integral_constant<int, 4>());
  if (RowsFitPacks<2>(table, other)) return f(std::integral_constant<int, 2>());
  f(std::integral_constant<int, 1>());
}
template <class S, class F>
void ByRowPack(const TablePointers<S>& table, const F& f) {
  ByRowPack(table, table.value, f);
}

inline LaunchShape TableShape(int64_t rows, int64_t shared_bytes) {
  return {
      .blocks = CeilDiv(rows, kTableWarps), .threads = kTableThreads, .shared_bytes = shared_bytes};
}

// Index of the warp in the grid: of the row that it works on.
__device__ __forceinline__ int64_t WarpOfGrid() {
  return int64_t{blockIdx.x} * kTableWarps + WarpIndex();
}

// What stochastic rounding draws from: 16 bits an element, eight elements a Philox block, whose
// counter is (row of the logical table, column / 8) and (step, stage), as on the CPU.
struct Rounding {
  uint64_t key, high;
  Rounding(uint64_t random_key, int64_t step, int stage)
      : key(random_key), high(static_cast<uint64_t>(step) << 1 | static_cast<uint64_t>(stage)) {}
};

// Shared memory of a block for RowWriter<S>: a Philox block a lane at once.
inline constexpr int kRandomAhead = 8 * kWarp;
template <class S>
constexpr int kRandomRoom = std::is_same_v<S, bf16> ? kRandomAhead* kTableWarps : 0;

// Writes a row's values from left to right. Plain storage: a store.
template <class S>
class RowWriter {
 public:
  __device__ RowWriter(const Rounding& /*rounding*/, const TablePointers<S>& table, int64_t row,
                       uint16_t* /*room*/)
      : values_(table.value + row * table.width) {}
  // All lanes of the warp, before they write in the 32 N columns from `first` on.
  __device__ __forceinline__ void Prepare(int /*first*/) {}
  template <int N>
  __device__ __forceinline__ void Write(const Pack<float, N>& pack, int column) {
    StorePack<N>(values_ + column, pack);
  }

 private:
  S* values_;
};

// bf16: the random bits are added below the last kept bit and the sum is cut off, so that the
// expected value is the value. Infinities stay, and a NaN stays one.
template <>
class RowWriter<bf16> {
 public:
  // room: of the block, kRandomRoom<bf16> elements.
  __device__ RowWriter(const Rounding& rounding, const TablePointers<bf16>& table, int64_t row,
                       uint16_t* room)
      : rounding_(rounding),
        values_(table.value + row * table.width),
        room_(room + WarpIndex() * kRandomAhead) {
    const int64_t of_part = table.numbers != nullptr ? int64_t{table.numbers[row]} : row;
    const int64_t logical =
        table.logical_rows == 0
            ? of_part
            : overtok::internal::GlobalIndex(table.sharding, table.logical_rows, of_part);
    low_ = static_cast<uint64_t>(logical) << 32;
  }
  __device__ __forceinline__ void Prepare(int first) {
    if (first % kRandomAhead != 0) return;
    SyncWarp();  // the bits before have been read
    const auto words = PhiloxWords(rounding_.key, low_ | static_cast<uint64_t>(first / 8 + Lane()),
                                   rounding_.high);
    Pack<uint32_t, 4> pack;
    for (int i = 0; i < 4; ++i) pack.v[i] = words[static_cast<size_t>(i)];
    StorePack<4>(reinterpret_cast<uint32_t*>(room_ + 8 * Lane()), pack);
    SyncWarp();
  }
  template <int N>
  __device__ __forceinline__ void Write(const Pack<float, N>& pack, int column) {
    const auto random = LoadPack<N>(room_ + column % kRandomAhead);
    Pack<bf16, N> out;
    for (int i = 0; i < N; ++i) {
      const float x = pack.v[i];
      const uint32_t bits = std::bit_cast<uint32_t>(x);
      const uint32_t rounded = x == x ? bits + random.v[i] : bits | 0x00400000U;
      out.v[i].bits = static_cast<uint16_t>(rounded >> 16);
    }
    StorePack<N>(values_ + column, out);
  }

 private:
  Rounding rounding_;
  uint64_t low_ = 0;
  bf16* values_;
  uint16_t* room_;
};

// The warp's lanes take the columns of a row in turn: body(first column of the warp's stretch,
// column of this lane's pack, whether there is one). All lanes go through every stretch together.
template <int N, class F>
__device__ __forceinline__ void ForEachStretch(int64_t width, const F& body) {
  const int columns = static_cast<int>(width);
  for (int first = 0; first < columns; first += kWarp * N) {
    const int column = first + Lane() * N;
    body(first, column, column < columns);
  }
}

// Packs of storage as floats.
template <int N, class S>
__device__ __forceinline__ Pack<float, N> LoadFloats(const S* from) {
  if constexpr (std::is_same_v<S, float>) {
    return LoadPack<N>(from);
  } else {
    const auto stored = LoadPack<N>(from);
    Pack<float, N> pack;
    for (int i = 0; i < N; ++i) pack.v[i] = ToFloat(stored.v[i]);
    return pack;
  }
}

}  // namespace overtok::OT_BACKEND

// What the passes over table rows share outside vector code.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/bf16.h"
#include "core/check.h"
#include "core/ops/table.h"

namespace overtok::cpu {

// Rows per piece of a parallel loop, so that a piece is worth a thread.
inline int64_t RowGrain(const TableState& state) {
  return std::max<int64_t>(1, 2048 / state.value.dim(1));
}

// Steps that a row reflects; a table without the record reflects all of them.
inline int64_t LastStep(const TableState& state, int64_t row, int64_t step) {
  if (!state.last.defined()) return step;
  const auto last = static_cast<int64_t>(state.last.data<uint32_t>()[row]);
  OT_CHECK_LE(last, step) << "row " << row << " of a table reflects a later step";
  return last;
}

// What the random bits of a row's rounding follow; 0 where nothing is rounded at random. S: type of
// the values.
template <class S>
uint64_t RandomRow(const TableState& state, int64_t row) {
  if constexpr (!std::is_same_v<S, bf16>) return 0;
  if (state.numbers.defined()) row = state.numbers.data<uint32_t>()[row];
  if (state.logical_rows == 0) return static_cast<uint64_t>(row);
  return static_cast<uint64_t>(GlobalOf(state.sharding, state.logical_rows, row));
}

// Rows lie anywhere in memory: the next one is fetched while this one is worked on.
inline void PrefetchRow(const TableState& state, int64_t row) {
  constexpr int64_t kLine = 64;
  for (const Tensor* tensor : {&state.value, &state.m, &state.v}) {
    if (!tensor->defined() || tensor->rank() == 1) continue;
    const int64_t bytes = tensor->dim(1) * SizeOf(tensor->dtype());
    const char* begin = static_cast<const char*>(tensor->raw()) + row * bytes;
    for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(begin + i, 1);
  }
}

}  // namespace overtok::cpu

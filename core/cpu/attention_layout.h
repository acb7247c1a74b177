// What a thread of attention keeps in scratch, for both directions and every Highway target.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/cpu/parallel.h"
#include "core/tensor.h"

namespace overtok::cpu {

// Query rows and keys of a tile; multiples of the lanes of every target and type.
constexpr int64_t kQueryRows = 64;
constexpr int64_t kKeyRows = 64;

// Rows in scratch are padded with zeros to whole vectors: 64 bytes.
inline int64_t PaddedWidth(int64_t width, int64_t element_bytes) {
  const int64_t lanes = 64 / element_bytes;
  return (width + lanes - 1) / lanes * lanes;
}

// One thread's part, carved in order; S = length, P = padded width. The backward direction uses all
// of it, the forward direction k, v and the tiles it needs.
template <class T>
struct AttentionTiles {
  T *k, *v;                   // [S, P] this window's keys and values of one head
  T *dk, *dv;                 // [S, P] their gradients
  T *q, *q_transposed;        // [64, P], [P, 64] scale * q
  T *dout, *dout_transposed;  // [64, P], [P, 64]
  T* o;                       // [64, P] output, or dq
  T *p, *ds;                  // [64 keys, 64 queries] scores, probabilities; their gradients
  T *largest, *sum, *delta;   // [64] per query: running maximum (or lse) and sum; o . dout
  T *first, *last;            // [64] per query: the keys of the tile it may attend to
  int32_t* start;             // [S] first position of the document of each position

  // With a null base, the size alone.
  int64_t Carve(char* base, int64_t length, int64_t width) {
    const int64_t row = PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
    int64_t used = 0;
    const auto take = [&](auto*& to, int64_t elements) {
      using Element = std::remove_reference_t<decltype(*to)>;
      to = base == nullptr ? nullptr : reinterpret_cast<Element*>(base + used);
      used += (elements * static_cast<int64_t>(sizeof(Element)) + 63) / 64 * 64;
    };
    for (T** rows : {&k, &v, &dk, &dv}) take(*rows, length * row);
    for (T** tile : {&q, &q_transposed, &dout, &dout_transposed, &o}) take(*tile, kQueryRows * row);
    for (T** tile : {&p, &ds}) take(*tile, kKeyRows * kQueryRows);
    for (T** line : {&largest, &sum, &delta, &first, &last}) take(*line, kQueryRows);
    take(start, length);
    return used;
  }
};

template <class T>
int64_t AttentionBytesPerThread(int64_t length, int64_t width) {
  return AttentionTiles<T>().Carve(nullptr, length, width);
}

// The backward direction makes at least this many tasks where it can: windows by key/value heads,
// each divided by queries into parts with gradients of keys and values of their own where those are
// fewer. Depends on sizes alone, because it decides the order of sums.
inline int64_t BackwardParts(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads) {
  constexpr int64_t kTasks = 8;
  const int64_t tasks = batch * kv_heads;
  const int64_t blocks = heads / kv_heads * ((length + kQueryRows - 1) / kQueryRows);
  return std::clamp<int64_t>((kTasks + tasks - 1) / tasks, 1, blocks);
}

// One part's gradients of keys and values, [2, S, P].
template <class T>
int64_t PartElements(int64_t length, int64_t width) {
  return 2 * length * PaddedWidth(width, static_cast<int64_t>(sizeof(T)));
}

// Both directions, all threads.
template <class T>
int64_t AttentionScratchBytes(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads,
                              int64_t width) {
  const int64_t parts = BackwardParts(batch, length, heads, kv_heads);
  const int64_t partial = parts == 1 ? 0 : batch * kv_heads * parts;
  return AttentionBytesPerThread<T>(length, width) * Threads() +
         partial * PartElements<T>(length, width) * static_cast<int64_t>(sizeof(T));
}

}  // namespace overtok::cpu

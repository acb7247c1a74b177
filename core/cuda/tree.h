// Sums over the leaves of the tree of core/gradient_sum.h, in registers: one partial sum for each
// level, which waits for its right-hand neighbour. Leaves come in the order of their numbers; some
// may be missing. A tree over any number of leaves is the one over the next power of two without
// those that are missing.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/cuda/kernel.h"

namespace overtok::OT_BACKEND {

// N sums side by side; leaves are below 2^kLevels.
template <int N, int kLevels>
class TreeSum {
 public:
  __device__ __forceinline__ void Add(uint32_t leaf, const float (&x)[N]) {
    if (empty_) {
      empty_ = false;
    } else {
      // The leaf and the one before it meet at the highest bit in which they differ; what is
      // complete below that is joined, from the smallest up, and waits there.
      const uint32_t differ = leaf ^ last_;
      bool below = true;
      for (int level = 0; level < kLevels; ++level) {
        if (!below) continue;
        below = differ >> (level + 1) != 0;
        if (below) {
          Join(level);
        } else {
          for (int i = 0; i < N; ++i) waiting_[level][i] = sum_[i];
          open_ |= 1U << level;
        }
      }
    }
    last_ = leaf;
    for (int i = 0; i < N; ++i) sum_[i] = x[i];
  }

  // The sum of the leaves so far, of which there is one at least; the tree is empty afterwards.
  __device__ __forceinline__ void Take(float (&sum)[N]) {
    for (int level = 0; level < kLevels; ++level) Join(level);
    for (int i = 0; i < N; ++i) sum[i] = sum_[i];
    empty_ = true;
  }

 private:
  __device__ __forceinline__ void Join(int level) {
    if ((open_ >> level & 1U) == 0) return;
    for (int i = 0; i < N; ++i) sum_[i] = waiting_[level][i] + sum_[i];
    open_ &= ~(1U << level);
  }

  float sum_[N] = {};  // of the leaves since the last one that waits
  float waiting_[kLevels][N] = {};
  uint32_t open_ = 0, last_ = 0;
  bool empty_ = true;
};

// Lists of up to 2^4, 2^8 or 4000 entries travel to a kernel in its parameters, of which there may
// be 32,764 bytes. Calls f(levels) with the least constant that is enough: f(4), f(8) or f(12).
inline constexpr int kMostListed = 4000;
template <int kLevels>
inline constexpr int kListed = kLevels == 12 ? kMostListed : 1 << kLevels;

template <class F>
void ByCount(int64_t count, const char* what, const F& f) {
  OT_CHECK_LE(count, kMostListed) << what << " takes no more parts at once";
  if (count <= kListed<4>) return f(std::integral_constant<int, 4>());
  if (count <= kListed<8>) return f(std::integral_constant<int, 8>());
  f(std::integral_constant<int, 12>());
}

}  // namespace overtok::OT_BACKEND

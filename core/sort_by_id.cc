#include "core/sort_by_id.h"

#include <algorithm>
#include <array>
#include <utility>

namespace overtok {

const uint64_t* SortById(uint64_t* a, uint64_t* b, int64_t n) {
  constexpr int kBits = 11;
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  uint64_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, a[i] >> 32);
  for (int shift = 32; shift < 64 && largest >> (shift - 32) != 0; shift += kBits) {
    std::array<int64_t, kMask + 1> next{};
    for (int64_t i = 0; i < n; ++i) ++next[a[i] >> shift & kMask];
    int64_t before = 0;
    for (int64_t& count : next) before += std::exchange(count, before);
    for (int64_t i = 0; i < n; ++i) b[next[a[i] >> shift & kMask]++] = a[i];
    std::swap(a, b);
  }
  return a;
}

}  // namespace overtok

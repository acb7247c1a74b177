#include "model/touched_rows.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/ops/embedding.h"

namespace overtok {
namespace {

// Sorts by the upper 32 bits, 11 at a time, leaving equal ids in their order. Returns the array
// that holds the result: `a` or `b`.
const uint64_t* SortById(uint64_t* a, uint64_t* b, size_t n) {
  constexpr int kBits = 11;
  constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
  uint64_t largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, a[i] >> 32);
  for (int shift = 32; shift < 64 && largest >> (shift - 32) != 0; shift += kBits) {
    std::array<size_t, kMask + 1> next{};
    for (size_t i = 0; i < n; ++i) ++next[a[i] >> shift & kMask];
    size_t before = 0;
    for (size_t& count : next) before += std::exchange(count, before);
    for (size_t i = 0; i < n; ++i) b[next[a[i] >> shift & kMask]++] = a[i];
    std::swap(a, b);
  }
  return a;
}

}  // namespace

void RowSlots::Fill(std::span<const uint32_t> ids, TouchedRows* touched, uint32_t* slots) {
  OT_CHECK_LE(2 * ids.size(), pairs_.size());
  size_t n = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == kNoRow) {
      slots[i] = kNoRow;
    } else {
      pairs_[n++] = static_cast<uint64_t>(ids[i]) << 32 | i;
    }
  }
  const uint64_t* sorted = SortById(pairs_.data(), pairs_.data() + pairs_.size() / 2, n);
  auto* rows = touched->rows.data<uint32_t>();
  int64_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto row = static_cast<uint32_t>(sorted[i] >> 32);
    if (count == 0 || rows[count - 1] != row) {
      OT_CHECK_LT(count, touched->rows.elements());
      rows[count++] = row;
    }
    slots[sorted[i] & 0xffffffffU] = static_cast<uint32_t>(count - 1);
  }
  touched->count = count;
}

}  // namespace overtok

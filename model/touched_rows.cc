#include "model/touched_rows.h"

#include "core/ops/embedding.h"
#include "core/sort_by_id.h"

namespace overtok {
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
  const uint64_t* sorted =
      SortById(pairs_.data(), pairs_.data() + pairs_.size() / 2, static_cast<int64_t>(n));
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

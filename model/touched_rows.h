// Which rows of a table a step touches, and where in the compact gradient each of them lies.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/parameter.h"

namespace overtok {

// Reused from step to step; sized on construction.
class RowSlots {
 public:
  explicit RowSlots(int64_t capacity) : pairs_(2 * static_cast<size_t>(capacity)) {}

  // Writes the distinct ids, ascending, without kNoRow, to touched->rows and sets its count; writes
  // the place of each id in that list (kNoRow stays) to `slots`.
  void Fill(std::span<const uint32_t> ids, TouchedRows* touched, uint32_t* slots);

 private:
  std::vector<uint64_t> pairs_;  // (id, position), and room to sort them
};

}  // namespace overtok

// Windows of the training data by how often the run has read them: what a model has memorised shows
// as a loss that falls with the count, against windows of the same corpus that were never read
// (docs/methods/repetition.md).
#pragma once

#include <cstdint>
#include <vector>

#include "core/status.h"
#include "trainer/evaluation_data.h"
#include "trainer/training_data.h"

namespace overtok {

inline constexpr char kSeenPrefix[] = "eval/seen";

// Windows that were read exactly `reads` times.
struct SeenSlice {
  int64_t reads = 0;
  int64_t available = 0;         // how many the corpus has
  std::vector<int64_t> windows;  // those chosen: evenly spread over them, ascending
};

// By exact count, ascending, after the first `sequences` windows of the run; counts that no window
// has are left out. At most `limit` windows each.
std::vector<SeenSlice> SliceByReads(const Order& order, int64_t windows, int64_t sequences,
                                    int64_t limit);

// The slices as one collection "eval/seen" with subsets "never", "1x", "2x", ...
absl::StatusOr<EvaluationCollection> SeenCollection(const TrainingData& data,
                                                    const std::vector<SeenSlice>& slices);

}  // namespace overtok

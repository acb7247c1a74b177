#include "trainer/seen_split.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "trainer/sample_counter.h"

namespace overtok {

std::vector<SeenSlice> SliceByReads(const Order& order, int64_t windows, int64_t sequences,
                                    int64_t limit) {
  SampleCounter counter(windows);
  counter.Replay(order, sequences);
  std::map<int64_t, std::vector<int64_t>> by_reads;
  for (int64_t window = 0; window < windows; ++window) {
    by_reads[counter.reads()[static_cast<size_t>(window)]].push_back(window);
  }
  std::vector<SeenSlice> slices;
  for (const auto& [reads, all] : by_reads) {
    SeenSlice slice;
    slice.reads = reads;
    slice.available = static_cast<int64_t>(all.size());
    const int64_t count = std::min(limit, slice.available);
    for (int64_t i = 0; i < count; ++i) {
      slice.windows.push_back(all[static_cast<size_t>(i * slice.available / count)]);
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

absl::StatusOr<EvaluationCollection> SeenCollection(const TrainingData& data,
                                                    const std::vector<SeenSlice>& slices) {
  const int64_t length = data.loader.sequence_length;
  EvaluationCollection collection;
  collection.prefix = kSeenPrefix;
  collection.identity = data.corpus->identity();
  for (const SeenSlice& slice : slices) {
    EvaluationSubset subset;
    subset.data.name = slice.reads == 0 ? "never" : absl::StrCat(slice.reads, "x");
    subset.windows = static_cast<int64_t>(slice.windows.size());
    subset.data.ids.resize(static_cast<size_t>(subset.windows * length));
    for (int64_t i = 0; i < subset.windows; ++i) {
      OT_RETURN_IF_ERROR(data.corpus->Read(slice.windows[static_cast<size_t>(i)] * length, length,
                                           subset.data.ids.data() + i * length));
    }
    collection.subsets.push_back(std::move(subset));
  }
  return collection;
}

}  // namespace overtok

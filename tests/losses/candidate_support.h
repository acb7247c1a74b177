// Candidate sets with the memory they live in, for tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/memory.h"
#include "losses/candidates.h"

namespace overtok::testing {

// Sets of exactly `candidates` classes, built once for `labels` in `blocks` blocks.
class BuiltSets {
 public:
  BuiltSets(const CandidateOptions& options, const std::vector<uint32_t>& labels, int64_t blocks,
            int64_t candidates, int64_t step)
      : memory_(Memory::Mode::kReal),
        // Room for more than is asked for, up to all classes.
        sets_(options, static_cast<int64_t>(labels.size()), blocks,
              std::min(options.classes, candidates + 3), &memory_) {
    sets_.Build(labels, candidates, step);
  }
  CandidateSets* operator->() { return &sets_; }
  const CandidateSets* operator->() const { return &sets_; }

 private:
  Memory memory_;
  CandidateSets sets_;
};

inline std::vector<uint32_t> Ids(const CandidateSet& set) {
  const auto* ids = set.ids.data<uint32_t>();
  return {ids, ids + set.ids.elements()};
}

}  // namespace overtok::testing

// This rank's share of the candidate sets of a step: of every block's set, which all ranks of a
// tensor group build alike, the classes that this rank scores. On one rank it is the sets
// themselves, and nothing is copied. docs/methods/sampled_softmax.md, docs/parallel.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/memory.h"
#include "core/sharding.h"
#include "core/tensor.h"
#include "losses/candidates.h"

namespace overtok {

// Of one block.
struct CandidateShare {
  // Of a block that did not overflow; undefined else.
  Tensor ids;   // [p] u32, this rank's candidates, ascending, as classes of all; p may be 0
  Tensor rows;  // [p] u32, the same as places in this rank's part of the classes, ascending
  Tensor bias;  // [p] f32, undefined where the set has none
  // The most classes that a rank of the group scores: the largest p, or the largest part of all
  // classes where the block overflowed. What LinearCrossEntropy::Run wants to know.
  int64_t most = 0;
};

class CandidateShares {
 public:
  // `classes`: of the head; `sharding`: which of them this rank has (rows, blocks or scattered).
  // The other arguments as of CandidateSets. Takes memory where there is more than one part.
  CandidateShares(const Sharding& sharding, int64_t classes, int64_t labels, int64_t blocks,
                  int64_t most, Memory* memory);

  // After sets.Build(labels, ...) of the same labels. The shares view the sets' memory on one part.
  void Build(const CandidateSets& sets, std::span<const uint32_t> labels);

  const std::vector<CandidateShare>& shares() const { return shares_; }
  // [labels of the last Build] u32: the target's index in its block's share, or kNoRow where
  // another rank has it. Of blocks that overflowed: its place in this rank's part of the classes,
  // or kNoRow.
  const Tensor& targets() const { return targets_; }

 private:
  CandidateShare ShareOf(const CandidateSet& set, int64_t block);

  Sharding sharding_;
  int64_t classes_;
  Tensor ids_, rows_, bias_;  // [blocks, p at most]; undefined on one part
  Tensor places_;             // [most] u32: of a set's candidates, in this rank's share, or kNoRow
  Tensor own_targets_;        // [labels] u32
  std::vector<int64_t> counts_;  // candidates of each part
  std::vector<CandidateShare> shares_;
  Tensor targets_;
};

// How unevenly `sharding` divides the work of a step's sets: over blocks, the sum of the busiest
// part's candidates relative to the mean part's. 1 is even. A block that overflowed counts with all
// classes.
double BusiestShare(const CandidateSets& sets, const Sharding& sharding, int64_t classes);

// The same of the sets that `labels` make in `blocks` blocks at step 0.
double BusiestShare(std::span<const uint32_t> labels, int64_t blocks, int64_t candidates,
                    const CandidateOptions& options, const Sharding& sharding);

}  // namespace overtok

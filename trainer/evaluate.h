// `overtok eval`: scores one checkpoint of a run on the evaluation sets of a configuration, and on
// request on the training data by how often it was read, or with every n-gram's row displaced.
// Reads the run's directory, writes nothing into it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/status.h"
#include "trainer/config/load.h"
#include "trainer/evaluation_scores.h"
#include "trainer/seen_split.h"

namespace overtok {

struct EvaluationReport {
  std::string run, checkpoint;  // directories
  int64_t step = 0, tokens = 0;
  double backbone_flops = 0, total_flops = 0;  // 6ND; forward and backward as levanter counts
  EvaluationScores scores;
  // The P of the sampled stage that the last step belonged to: the full softmax is then worse than
  // the weights deserve. 0: none.
  int64_t stage_candidates = 0;
  bool scrambled = false;
  std::vector<SeenSlice> seen;  // of eval/seen, in the order of its subsets

  std::string ToText() const;  // a table
  std::string ToJson() const;  // one object, indented
};

struct EvaluateOptions {
  std::optional<int64_t> step;   // of the checkpoint; not set: the newest marked one
  bool seen = false;             // the training data by number of reads as well (seen_split.h)
  int64_t windows = 256;         // of each of these slices, at most
  bool scramble_ngrams = false;  // rows of n-grams displaced: what the tables' content is worth
};

// Collective; the same report on every rank. A checkpoint of checkpoint.directory. With `seen` the
// configuration needs no evaluation sets.
absl::StatusOr<EvaluationReport> EvaluateCheckpoint(LoadedConfig loaded,
                                                    const EvaluateOptions& options,
                                                    Communicator* world);

}  // namespace overtok

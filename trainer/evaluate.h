// `overtok eval`: scores one checkpoint of a run on the evaluation sets of a configuration. Reads
// the run's directory, writes nothing into it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/status.h"
#include "trainer/config/load.h"
#include "trainer/evaluation_scores.h"

namespace overtok {

struct EvaluationReport {
  std::string run, checkpoint;  // directories
  int64_t step = 0, tokens = 0;
  double backbone_flops = 0, total_flops = 0;  // 6ND; forward and backward as levanter counts
  EvaluationScores scores;

  std::string ToText() const;  // a table
  std::string ToJson() const;  // one object, indented
};

// The checkpoint of `step`, or the newest marked one, of checkpoint.directory.
absl::StatusOr<EvaluationReport> EvaluateCheckpoint(const LoadedConfig& loaded,
                                                    std::optional<int64_t> step);

}  // namespace overtok

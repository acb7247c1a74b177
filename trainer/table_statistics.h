// `overtok data tables`: how the input tables of a configuration would be used by its first steps,
// without a model: rows touched, hits per row, and n-grams that share a row against what a random
// function would give. Integer work over the run's own batches; no table is made, only a counter
// for each of its rows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "trainer/config/load.h"

namespace overtok {

// One table's use. A hit is a position of a step that reads the row; a pass that re-hashes counts
// its n-grams as new ones.
struct TableUse {
  int64_t table = 0, order = 0;
  uint64_t modulus = 0;
  uint64_t common_factor = 0;   // gcd(V, modulus): above 1, n-grams collide by arithmetic
  double touched_per_step = 0;  // distinct rows, mean over the steps
  int64_t touched_most = 0;     // of one step
  int64_t hits = 0;             // positions of all steps
  int64_t distinct_rows = 0;    // of all steps
  int64_t distinct_ngrams = 0;  // of all steps
  double expected_rows = 0;     // distinct rows of as many n-grams under a random function
  // N-grams that share their row with another one, and how many a random function would give.
  int64_t sharing_ngrams = 0;
  double expected_sharing = 0;
  // Hits of the rows that were touched: their median, 90 %, 99 % and largest.
  int64_t median_hits = 0, hits_90 = 0, hits_99 = 0, most_hits = 0;
  // Entry b: rows with 2^b to 2^(b + 1) - 1 hits.
  std::vector<int64_t> histogram;
};

struct TableStatistics {
  int64_t steps = 0;
  int64_t tokens = 0;               // read by these steps
  int64_t run_unique_tokens = 0;    // that the whole run can read: one pass, or less
  int64_t table_parameters = 0;     // of all input tables
  double parameters_per_token = 0;  // table_parameters / run_unique_tokens
  std::vector<TableUse> tables;

  std::string ToText() const;
  std::string ToJson() const;  // one object, indented
};

// The first `steps` steps of the run, all of them with 0.
absl::StatusOr<TableStatistics> MeasureTables(LoadedConfig loaded, int64_t steps);

}  // namespace overtok

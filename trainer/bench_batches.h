// What `overtok bench step` trains on: batches of random ids, and tables in the state that so many
// steps on such ids would have left, so that a short benchmark meets rows as old as a long run
// does.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/batch.h"
#include "trainer/config/config.h"
#include "trainer/train_step.h"

namespace overtok {

enum class IdDistribution : uint8_t {
  kUniform,
  kZipf,  // probability of id i proportional to 1 / (i + 1): about what text does
  // (i + 1)^-1.16: at V = 128,256 a block of 131,072 ids names 16,900 of them, as English web text
  // does (16,950 published for FineWeb-Edu), so that candidate sets have room as they have in a
  // run.
  kText,
};

// The distribution of that name: "uniform", "zipf", "text".
absl::StatusOr<IdDistribution> IdDistributionNamed(absl::string_view name);
const char* NameOf(IdDistribution distribution);

// Draws ids; the batch of a step is a pure function of (distribution, seed, step).
class BatchSource {
 public:
  BatchSource(const Config& config, IdDistribution distribution, uint64_t seed);

  // One document a window; every position but the last weighs 1.
  void Fill(int64_t step, Batch* batch) const;

 private:
  int64_t sequences_, length_;
  uint64_t vocabulary_, seed_;
  std::vector<double> below_;  // [V] of all but kUniform: probability of an id at or below this one
};

// Tables as after `steps` steps on the batches of `source`: every row's last touch where these
// batches put it (by the model's own naming of rows), and moments of a plausible size in all rows
// that were touched. Values stay as initialised. Costs the naming of rows, no arithmetic of the
// model.
void AgeTables(const BatchSource& source, int64_t steps, TrainStep* train);

}  // namespace overtok

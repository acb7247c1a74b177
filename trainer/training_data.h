// The training data of a configuration: its shards opened and checked against the model, the order
// of its windows, and the horizon resolved. `train`, `trace` and `eval` open data through this one
// function.
#pragma once

#include <cstdint>
#include <memory>

#include "core/status.h"
#include "data/loader.h"
#include "data/order.h"
#include "data/shard.h"
#include "trainer/config/load.h"

namespace overtok {

struct TrainingData {
  std::shared_ptr<const Corpus> corpus;
  Order order;
  LoaderOptions
      loader;  // first_step 0, end_step the horizon; the caller sets first_step when it resumes
  int64_t windows = 0;  // N, windows of sequence_length in the corpus
};

// Opens data.train, counts windows, resolves train.steps where it is still open,
// keeps the prefix that data.passes or data.unique_tokens ask for. Errors: no shards named, ids
// that do not fit model.vocab_size, fewer windows than one batch, and what the parts report.
absl::StatusOr<TrainingData> OpenTrainingData(LoadedConfig* loaded);

}  // namespace overtok

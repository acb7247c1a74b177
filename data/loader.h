// The loader: fills the batches of steps first, first + 1, ... on a thread of its own, `depth`
// ahead, and hands them out in order. What it reads is a pure function of (corpus, order, step), so
// it can start at any step.
#pragma once

#include <memory>

#include "core/status.h"
#include "data/batch.h"
#include "data/order.h"
#include "data/shard.h"

namespace overtok {

struct LoaderOptions {
  int64_t batch_sequences = 0;  // B
  int64_t sequence_length = 0;  // S
  int64_t first_step = 0;
  int64_t end_step = 0;  // exclusive
  int depth = 2;
};

// Windows of `sequence_length` in the corpus (the tail is dropped).
int64_t CountWindows(const Corpus& corpus, int64_t sequence_length);

// Fills `batch` (resized) with the sequences of `step`; the one place that turns (step, order) into
// ids.
absl::Status FillBatch(const Corpus& corpus, const Order& order, const LoaderOptions& options,
                       int64_t step, Batch* batch);

class Loader {
 public:
  static std::unique_ptr<Loader> Start(std::shared_ptr<const Corpus> corpus, Order order,
                                       LoaderOptions options);
  virtual ~Loader() = default;  // stops the thread
  // The next step's batch; valid until the next call. Errors of the thread come out here, once and
  // for good.
  virtual absl::StatusOr<const Batch*> Next() = 0;
  virtual double seconds_waited() const = 0;  // time callers of Next() spent waiting, so far
};

}  // namespace overtok

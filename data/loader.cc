// Fills batches ahead of the training loop on one thread. A ring of depth + 1 batches: the caller
// owns the one it was handed last, the thread fills the others. The thread sleeps when all are
// full; both sides wait on condition variables.
#include "data/loader.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "core/check.h"

namespace overtok {

int64_t CountWindows(const Corpus& corpus, int64_t sequence_length) {
  OT_CHECK_GE(sequence_length, 1);
  return corpus.tokens() / sequence_length;
}

absl::Status FillBatch(const Corpus& corpus, const Order& order, const LoaderOptions& options,
                       int64_t step, Batch* batch) {
  const int64_t rows = options.batch_sequences, length = options.sequence_length;
  OT_CHECK(rows >= 1 && length >= 1 && step >= 0);
  OT_CHECK_LE(order.windows(), CountWindows(corpus, length));
  batch->Resize(rows, length);
  batch->first_sequence = step * rows;
  batch->pass = order.StepPass(batch->first_sequence);
  batch->begins_pass = step > 0 && order.StepPass(batch->first_sequence - rows) != batch->pass;
  batch->weight_sum = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t window = order.Window(batch->first_sequence + row);
    batch->windows[static_cast<size_t>(row)] = window;
    uint32_t* tokens = batch->tokens.data() + row * length;
    float* weight = batch->loss_weight.data() + row * length;
    const absl::Status read = corpus.Read(window * length, length, tokens);
    if (!read.ok()) {
      return Annotate(read, absl::StrCat("step ", step, ", row ", row, " (window ", window, ")"));
    }
    FillSegmentsAndWeights(corpus.identity(), tokens, length, batch->segments.data() + row * length,
                           weight);
    // Weights are 0 or 1 here: their float sum is exact below 2^24 and lets the compiler use
    // several lanes.
    int64_t counted = 0;
    for (int64_t t = 0; t < length; ++t) counted += weight[t] != 0.0f ? 1 : 0;
    batch->weight_sum += static_cast<double>(counted);
  }
  return absl::OkStatus();
}

namespace {

class LoaderImpl final : public Loader {
 public:
  LoaderImpl(std::shared_ptr<const Corpus> corpus, Order order, LoaderOptions options)
      : corpus_(std::move(corpus)),
        order_(order),
        options_(options),
        ring_(static_cast<size_t>(options.depth) + 1),
        thread_([this] { Run(); }) {}

  ~LoaderImpl() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  absl::StatusOr<const Batch*> Next() override {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t step = options_.first_step + handed_out_;
    if (step >= options_.end_step) {
      return absl::OutOfRangeError(absl::StrCat("the loader ends before step ", options_.end_step));
    }
    handed_out_ += 1;  // frees the batch of the call before
    changed_.notify_all();
    if (filled_ < handed_out_ && error_.ok()) {
      const auto start = std::chrono::steady_clock::now();
      changed_.wait(lock, [this] { return filled_ >= handed_out_ || !error_.ok(); });
      waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    // Batches that were filled before the error are still good.
    if (filled_ < handed_out_) {
      handed_out_ -= 1;
      return error_;
    }
    return &ring_[static_cast<size_t>(handed_out_ - 1) % ring_.size()];
  }

  double seconds_waited() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waited_;
  }

 private:
  void Run() {
    const int64_t steps = options_.end_step - options_.first_step;
    for (int64_t i = 0; i < steps; ++i) {
      {
        std::unique_lock<std::mutex> lock(mutex_);
        // Slot i is free once batch i - ring size has been given back, that is, once the batch
        // after it has been handed out.
        changed_.wait(lock, [this, i] {
          return stop_ || i < handed_out_ + static_cast<int64_t>(ring_.size()) - 1 ||
                 (handed_out_ == 0 && i < static_cast<int64_t>(ring_.size()));
        });
        if (stop_) return;
      }
      const absl::Status status = FillBatch(*corpus_, order_, options_, options_.first_step + i,
                                            &ring_[static_cast<size_t>(i) % ring_.size()]);
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (status.ok()) {
          ++filled_;
        } else {
          error_ = status;
        }
      }
      changed_.notify_all();
      if (!status.ok()) return;
    }
  }

  const std::shared_ptr<const Corpus> corpus_;
  const Order order_;
  const LoaderOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Batch> ring_;
  int64_t filled_ = 0, handed_out_ = 0;  // batches since the start
  absl::Status error_;
  bool stop_ = false;
  double waited_ = 0;
  std::thread thread_;  // last: starts when everything above is there
};

}  // namespace

std::unique_ptr<Loader> Loader::Start(std::shared_ptr<const Corpus> corpus, Order order,
                                      LoaderOptions options) {
  OT_CHECK(options.depth >= 1 && options.first_step >= 0 && options.end_step >= options.first_step);
  return std::make_unique<LoaderImpl>(std::move(corpus), order, options);
}

}  // namespace overtok

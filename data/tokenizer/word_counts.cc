#include "data/tokenizer/word_counts.h"

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "data/tokenizer/utf8.h"

namespace overtok {
namespace {

using Counts = absl::flat_hash_map<std::string, int64_t>;

// Documents are fetched in batches of about this size, so that threads seldom meet at the source.
constexpr size_t kBatchBytes = size_t{1} << 20;

class Counter {
 public:
  Counter(const DocumentSource& source, const PreTokenizer& pre_tokenizer,
          const std::function<void(int64_t)>& progress)
      : source_(source), pre_tokenizer_(pre_tokenizer), progress_(progress) {}

  // One thread's work: batches until the source ends or any thread fails.
  void Run(Counts* counts) {
    std::vector<std::string> batch;
    int64_t first = 0;
    while (Fetch(&batch, &first)) {
      for (size_t i = 0; i < batch.size(); ++i) {
        absl::Status status = Count(batch[i], counts);
        if (!status.ok()) {
          Fail(Annotate(status, absl::StrCat("document ", first + static_cast<int64_t>(i) + 1)));
          return;
        }
      }
    }
  }

  const absl::Status& status() const { return status_; }

 private:
  bool Fetch(std::vector<std::string>* batch, int64_t* first) {
    const std::lock_guard<std::mutex> lock(mutex_);
    batch->clear();
    *first = documents_;
    size_t bytes = 0;
    while (status_.ok() && !ended_ && bytes < kBatchBytes) {
      std::string document;
      const absl::StatusOr<bool> more = source_(&document);
      if (!more.ok()) {
        status_ = more.status();
      } else if (!*more) {
        ended_ = true;
      } else {
        bytes += document.size();
        ++documents_;
        batch->push_back(std::move(document));
      }
    }
    bytes_ += static_cast<int64_t>(bytes);
    if (progress_) progress_(bytes_);
    return status_.ok() && !batch->empty();
  }

  absl::Status Count(absl::string_view document, Counts* counts) const {
    OT_RETURN_IF_ERROR(CheckUtf8(document));
    return pre_tokenizer_.Split(document, [&](absl::string_view piece) { ++(*counts)[piece]; });
  }

  void Fail(absl::Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
  }

  const DocumentSource& source_;
  const PreTokenizer& pre_tokenizer_;
  const std::function<void(int64_t)>& progress_;
  std::mutex mutex_;
  absl::Status status_;
  int64_t documents_ = 0, bytes_ = 0;
  bool ended_ = false;
};

}  // namespace

absl::StatusOr<std::vector<WordCount>> CountWords(
    const DocumentSource& source, const PreTokenizer& pre_tokenizer, int threads,
    const std::function<void(int64_t bytes)>& progress) {
  Counter counter(source, pre_tokenizer, progress);
  std::vector<Counts> counts(static_cast<size_t>(std::max(1, threads)));
  std::vector<std::thread> workers;
  for (size_t i = 1; i < counts.size(); ++i) {
    workers.emplace_back([&counter, &counts, i] { counter.Run(&counts[i]); });
  }
  counter.Run(&counts[0]);
  for (std::thread& worker : workers) worker.join();
  if (!counter.status().ok()) return counter.status();
  Counts& all = counts[0];
  for (size_t i = 1; i < counts.size(); ++i) {
    for (const auto& [bytes, count] : counts[i]) all[bytes] += count;
    counts[i] = Counts();
  }
  std::vector<WordCount> words;
  words.reserve(all.size());
  for (const auto& [bytes, count] : all) words.push_back({bytes, count});
  std::sort(words.begin(), words.end(),
            [](const WordCount& a, const WordCount& b) { return a.bytes < b.bytes; });
  return words;
}

}  // namespace overtok

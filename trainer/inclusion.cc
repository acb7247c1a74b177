#include "trainer/inclusion.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace overtok {

absl::StatusOr<LabelSample> SampleLabels(const Config& config, const Corpus& corpus,
                                         const Order& order) {
  const int64_t rows = config.loss.block_sequences, length = config.data.sequence_length;
  const int64_t total = config.train.steps * (config.train.batch_sequences / rows);
  const auto classes = static_cast<size_t>(config.model.vocab_size);
  LabelSample sample;
  sample.blocks = std::min(kSampledBlocks, total);
  std::vector<int64_t> count(classes, 0), seen_in(classes, -1);
  std::vector<uint32_t> ids(static_cast<size_t>(length));
  int64_t distinct_sum = 0;
  for (int64_t b = 0; b < sample.blocks; ++b) {
    const int64_t block = b * total / sample.blocks;
    int64_t distinct = 0;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t window = order.Window(block * rows + row);
      OT_RETURN_IF_ERROR(corpus.Read(window * length, length, ids.data()));
      // The last position's label is the window's first id: a window's labels are all of its ids.
      for (const uint32_t id : ids) {
        if (seen_in[id] == b) continue;
        seen_in[id] = b;
        ++count[id];
        ++distinct;
      }
    }
    distinct_sum += distinct;
    sample.most_distinct = std::max(sample.most_distinct, distinct);
  }
  const auto blocks = static_cast<double>(std::max<int64_t>(sample.blocks, 1));
  sample.mean_distinct = static_cast<double>(distinct_sum) / blocks;
  sample.share.resize(classes);
  for (size_t c = 0; c < classes; ++c) sample.share[c] = static_cast<double>(count[c]) / blocks;
  return sample;
}

std::vector<float> LogInclusion(const LabelSample& sample, int64_t candidates) {
  const auto classes = static_cast<double>(sample.share.size());
  const auto chosen = static_cast<double>(candidates);
  std::vector<float> log_pi(sample.share.size(), 0.0F);
  if (chosen >= classes || chosen <= sample.mean_distinct) return log_pi;
  const double drawn = (chosen - sample.mean_distinct) / (classes - sample.mean_distinct);
  for (size_t c = 0; c < log_pi.size(); ++c) {
    const double q = sample.share[c];
    log_pi[c] = static_cast<float>(std::log(q + (1 - q) * drawn));
  }
  return log_pi;
}

std::vector<std::string> CandidateWarnings(const Config& config, const LabelSample& sample) {
  std::vector<std::string> warnings;
  if (!config.loss.sampled_softmax.has_value()) return warnings;
  const std::vector<SampledStage>& stages = config.loss.sampled_softmax->stages;
  for (size_t i = 0; i < stages.size(); ++i) {
    const int64_t candidates = stages[i].candidates;
    if (candidates >= sample.most_distinct) continue;
    const bool most = static_cast<double>(candidates) < sample.mean_distinct;
    warnings.push_back(absl::StrFormat(
        "loss.sampled_softmax.stages[%d]: %d candidates, but a block of %d windows has %.0f "
        "distinct labels on average and up to %d (%d blocks of this run's data); %s blocks will "
        "use the full softmax. Raise candidates, or lower loss.block_sequences.",
        i, candidates, config.loss.block_sequences, sample.mean_distinct, sample.most_distinct,
        sample.blocks, most ? "most" : "some"));
  }
  return warnings;
}

}  // namespace overtok

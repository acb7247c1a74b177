#include "trainer/evaluator.h"

#include <algorithm>
#include <numbers>

#include "core/console.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

TransformerOptions OptionsOf(const Config& config) {
  TransformerOptions options;
  options.pass = Evaluator::PassOf(config);
  options.act = config.train.precision;
  options.training = false;
  return options;
}

}  // namespace

PassShape Evaluator::PassOf(const Config& config) {
  return {config.train.micro_batch_sequences, config.data.sequence_length};
}

Evaluator::Evaluator(const Config& config, const Transformer& trained, ParameterSet* parameters,
                     Memory* memory)
    : config_(config),
      parameters_(parameters),
      owned_(std::make_unique<Transformer>(trained, OptionsOf(config), memory)),
      model_(owned_.get()),
      micro_(TakeMicroBatch(PassOf(config), memory)) {}

Evaluator::Evaluator(const Config& config, Transformer* model, ParameterSet* parameters,
                     Memory* memory)
    : config_(config),
      parameters_(parameters),
      model_(model),
      micro_(TakeMicroBatch(PassOf(config), memory)) {}

// Window `window` of the subset into row `row` of batch_. What a last, shorter window lacks is
// filled with id 0 of weight 0 in a segment of its own: causal attention keeps it from the rest.
void Evaluator::FillRow(const ShardIdentity& identity, const EvaluationSubset& subset,
                        int64_t window, int64_t row) {
  const int64_t length = batch_.length;
  const std::vector<uint32_t>& ids = subset.data.ids;
  const int64_t begin = window * length;
  const int64_t count = std::min(length, static_cast<int64_t>(ids.size()) - begin);
  const auto at = static_cast<size_t>(row * length);
  uint32_t* tokens = batch_.tokens.data() + at;
  int32_t* segments = batch_.segments.data() + at;
  float* weights = batch_.loss_weight.data() + at;
  std::copy_n(ids.begin() + begin, count, tokens);
  FillSegmentsAndWeights(identity, tokens, count, segments, weights);
  for (int64_t t = count; t < length; ++t) {
    tokens[t] = 0;
    segments[t] = segments[count - 1] + 1;
    weights[t] = 0;
  }
}

absl::StatusOr<SubsetScore> Evaluator::Score(const Context& context,
                                             const EvaluationCollection& collection,
                                             const EvaluationSubset& subset,
                                             const std::function<bool()>& should_stop,
                                             const std::function<void(int64_t)>& windows_done) {
  const int64_t rows = PassOf(config_).batch, length = config_.data.sequence_length;
  SubsetScore score;
  score.name = subset.data.name;
  score.windows = subset.windows;
  double bytes = 0, levanter_sum = 0;
  // Of the group of windows that is under way: what levanter calls a batch.
  double group_loss = 0, group_weight = 0, group_bytes = 0;
  for (int64_t first = 0; first < subset.windows; first += rows) {
    if (should_stop()) return absl::CancelledError("evaluation was asked to stop");
    const int64_t count = std::min(rows, subset.windows - first);
    batch_.Resize(rows, length);
    std::fill(batch_.tokens.begin(), batch_.tokens.end(), 0u);
    std::fill(batch_.segments.begin(), batch_.segments.end(), 0);
    std::fill(batch_.loss_weight.begin(), batch_.loss_weight.end(), 0.0F);
    for (int64_t r = 0; r < count; ++r) FillRow(collection.identity, subset, first + r, r);
    FillMicroBatch(batch_, 0, rows, 1.0, micro_);
    model_->Evaluate(context, micro_);
    const float* losses = model_->token_losses().data<float>();
    for (int64_t r = 0; r < count; ++r) {
      double loss = 0, weight = 0, exact = 0, levanter = 0;
      for (int64_t t = 0; t + 1 < length; ++t) {
        const auto i = static_cast<size_t>(r * length + t);
        const double w = batch_.loss_weight[i];
        if (w == 0) continue;
        loss += w * static_cast<double>(losses[i]);
        weight += w;
        const auto target = static_cast<size_t>((first + r) * length + t + 1);
        if (collection.has_exact_bytes) exact += subset.data.exact_bytes[target];
        if (collection.has_levanter_bytes) levanter += w * subset.data.levanter_bytes[target];
      }
      score.loss_sum += loss;
      score.weight += weight;
      bytes += exact;
      group_loss += loss;
      group_weight += weight;
      group_bytes += levanter;
      const int64_t done = first + r + 1;
      if (done % config_.train.batch_sequences != 0 && done != subset.windows) continue;
      if (group_weight > 0) {
        // Levanter divides by one byte a token at least.
        const double bytes_per_token = std::max(group_bytes / group_weight, 1.0);
        levanter_sum += group_loss * std::numbers::log2e / bytes_per_token;
      }
      group_loss = group_weight = group_bytes = 0;
    }
    windows_done(count);
  }
  if (collection.has_exact_bytes) score.bytes = bytes;
  if (collection.has_levanter_bytes) score.levanter_sum = levanter_sum;
  return score;
}

absl::StatusOr<EvaluationScores> Evaluator::Run(const Context& context, const EvaluationData& data,
                                                const std::function<bool()>& should_stop) {
  parameters_->RefreshComputeCopies(context);  // the last step changed the master weights
  Progress progress("evaluating", static_cast<double>(data.windows()), "windows");
  int64_t done = 0;
  EvaluationScores scores;
  for (const EvaluationCollection& collection : data.collections()) {
    CollectionScore score;
    score.prefix = collection.prefix;
    score.left_out = collection.left_out;
    score.complete = collection.complete;
    for (const EvaluationSubset& subset : collection.subsets) {
      absl::StatusOr<SubsetScore> found =
          Score(context, collection, subset, should_stop, [&](int64_t windows) {
            done += windows;
            progress.Update(static_cast<double>(done), subset.data.name);
          });
      if (!found.ok()) return found.status();
      // A subset without a target (a single token) has no loss, and would make every mean NaN.
      if (found->weight > 0) {
        score.subsets.push_back(*std::move(found));
      } else {
        score.left_out.push_back(subset.data.name);
        score.complete = score.complete && collection.prefix != kPalomaPrefix;
      }
    }
    if (!score.subsets.empty()) scores.collections.push_back(std::move(score));
  }
  return scores;
}

}  // namespace overtok

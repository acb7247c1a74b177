#include "trainer/evaluator.h"

#include <algorithm>
#include <numbers>

#include "core/check.h"
#include "core/console.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

Tensor TakeInclusion(const Config& config, Memory* memory) {
  if (!HasAdjustedCurve(config)) return Tensor();
  return memory->Take(Purpose::kBatches, "evaluation.log_inclusion", DType::kF32,
                      {config.model.vocab_size});
}

}  // namespace

bool HasAdjustedCurve(const Config& config) {
  return config.eval.inclusion_adjusted && config.loss.sampled_softmax.has_value() &&
         config.loss.sampled_softmax->correction == Correction::kNone;
}

TransformerOptions Evaluator::OptionsOf(const Config& config) {
  TransformerOptions options;
  options.pass = {config.train.micro_batch_sequences, config.data.sequence_length};
  options.batch_sequences = options.pass.batch;
  options.steps = config.train.steps;
  options.seed = config.train.seed;
  options.act = config.train.precision;
  options.training = false;
  return options;
}

Evaluator::Evaluator(const Config& config, const Transformer& trained, ParameterSet* parameters,
                     Memory* memory)
    : config_(config),
      parameters_(parameters),
      owned_(std::make_unique<Transformer>(trained, OptionsOf(config), memory)),
      model_(owned_.get()),
      inclusion_(TakeInclusion(config, memory)) {}

Evaluator::Evaluator(const Config& config, Transformer* model, ParameterSet* parameters,
                     Memory* memory)
    : config_(config),
      parameters_(parameters),
      model_(model),
      inclusion_(TakeInclusion(config, memory)) {}

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

void Evaluator::AddPass(const EvaluationCollection& collection, const EvaluationSubset& subset,
                        int64_t first, int64_t count, Sums* sums) const {
  const int64_t length = config_.data.sequence_length;
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
    sums->score.loss_sum += loss;
    sums->score.weight += weight;
    sums->bytes += exact;
    sums->group_loss += loss;
    sums->group_weight += weight;
    sums->group_bytes += levanter;
    const int64_t done = first + r + 1;
    if (done % config_.train.batch_sequences != 0 && done != subset.windows) continue;
    if (sums->group_weight > 0) {
      // Levanter divides by one byte a token at least.
      const double bytes_per_token = std::max(sums->group_bytes / sums->group_weight, 1.0);
      sums->levanter_sum += sums->group_loss * std::numbers::log2e / bytes_per_token;
    }
    sums->group_loss = sums->group_weight = sums->group_bytes = 0;
  }
}

absl::StatusOr<std::vector<SubsetScore>> Evaluator::Score(
    const Context& context, const EvaluationCollection& collection, const EvaluationSubset& subset,
    const EvaluationMoment& moment, const std::function<bool()>& should_stop,
    const std::function<void(int64_t)>& windows_done) {
  const int64_t rows = model_->options().pass.batch, length = config_.data.sequence_length;
  const bool twice = !moment.log_inclusion.empty();
  Sums plain, adjusted;
  for (int64_t first = 0; first < subset.windows; first += rows) {
    if (should_stop()) return absl::CancelledError("evaluation was asked to stop");
    const int64_t count = std::min(rows, subset.windows - first);
    batch_.Resize(rows, length);
    std::fill(batch_.tokens.begin(), batch_.tokens.end(), 0u);
    std::fill(batch_.segments.begin(), batch_.segments.end(), 0);
    std::fill(batch_.loss_weight.begin(), batch_.loss_weight.end(), 0.0F);
    for (int64_t r = 0; r < count; ++r) FillRow(collection.identity, subset, first + r, r);
    batch_.pass = moment.model.pass;
    model_->Evaluate(context, ViewOf(batch_, 0), moment.model);
    AddPass(collection, subset, first, count, &plain);
    if (twice) {
      model_->EvaluateWithBias(context, inclusion_);
      AddPass(collection, subset, first, count, &adjusted);
    }
    windows_done(count);
  }
  std::vector<SubsetScore> scores;
  for (Sums* sums : {&plain, &adjusted}) {
    if (sums == &adjusted && !twice) continue;
    sums->score.name = subset.data.name;
    sums->score.windows = subset.windows;
    if (collection.has_exact_bytes) sums->score.bytes = sums->bytes;
    if (collection.has_levanter_bytes) sums->score.levanter_sum = sums->levanter_sum;
    scores.push_back(std::move(sums->score));
  }
  return scores;
}

absl::StatusOr<EvaluationScores> Evaluator::Run(const Context& context, const EvaluationData& data,
                                                const EvaluationMoment& moment,
                                                const std::function<bool()>& should_stop) {
  parameters_->RefreshComputeCopies(context);  // the last step changed the master weights
  if (!moment.log_inclusion.empty()) {
    OT_CHECK_EQ(static_cast<int64_t>(moment.log_inclusion.size()), inclusion_.elements());
    std::copy(moment.log_inclusion.begin(), moment.log_inclusion.end(), inclusion_.data<float>());
  }
  Progress progress("evaluating", static_cast<double>(data.windows()), "windows");
  int64_t done = 0;
  EvaluationScores scores;
  for (const EvaluationCollection& collection : data.collections()) {
    CollectionScore score;
    score.prefix = collection.prefix;
    score.left_out = collection.left_out;
    score.complete = collection.complete;
    std::vector<SubsetScore> adjusted;
    for (const EvaluationSubset& subset : collection.subsets) {
      absl::StatusOr<std::vector<SubsetScore>> found =
          Score(context, collection, subset, moment, should_stop, [&](int64_t windows) {
            done += windows;
            progress.Update(static_cast<double>(done), subset.data.name);
          });
      if (!found.ok()) return found.status();
      // A subset without a target (a single token) has no loss, and would make every mean NaN.
      if (found->front().weight > 0) {
        if (found->size() > 1) adjusted.push_back(std::move(found->back()));
        score.subsets.push_back(std::move(found->front()));
      } else {
        score.left_out.push_back(subset.data.name);
        score.complete = score.complete && collection.prefix != kPalomaPrefix;
      }
    }
    if (score.subsets.empty()) continue;
    if (!adjusted.empty()) {
      CollectionScore& second = scores.adjusted.emplace_back(score);
      second.prefix = absl::StrCat(score.prefix, kAdjustedSuffix);
      second.subsets = std::move(adjusted);
    }
    scores.collections.push_back(std::move(score));
  }
  return scores;
}

}  // namespace overtok

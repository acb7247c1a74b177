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
  const Memory::InputsOf inputs(memory, InputGroup::kEvaluation);
  return memory->TakeInput(Purpose::kBatches, "evaluation.log_inclusion", DType::kF32,
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
                     const Mesh* mesh, Memory* memory)
    : config_(config),
      parameters_(parameters),
      mesh_(mesh),
      owned_(std::make_unique<Transformer>(trained, OptionsOf(config), memory)),
      model_(owned_.get()),
      inclusion_(TakeInclusion(config, memory)) {}

Evaluator::Evaluator(const Config& config, Transformer* model, ParameterSet* parameters,
                     const Mesh* mesh, Memory* memory)
    : config_(config),
      parameters_(parameters),
      mesh_(mesh),
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
                        int64_t first, int64_t count, const Context& context,
                        std::vector<WindowSums>* windows) {
  const int64_t length = config_.data.sequence_length;
  losses_.resize(static_cast<size_t>(model_->token_losses().elements()));
  context.Read(model_->token_losses(), losses_.data());
  for (int64_t r = 0; r < count; ++r) {
    WindowSums& sums = (*windows)[static_cast<size_t>(first + r)];
    for (int64_t t = 0; t + 1 < length; ++t) {
      const auto i = static_cast<size_t>(r * length + t);
      const double w = batch_.loss_weight[i];
      if (w == 0) continue;
      sums.loss += w * static_cast<double>(losses_[i]);
      sums.weight += w;
      const auto target = static_cast<size_t>((first + r) * length + t + 1);
      if (collection.has_exact_bytes) sums.bytes += subset.data.exact_bytes[target];
      if (collection.has_levanter_bytes) {
        sums.levanter_bytes += w * subset.data.levanter_bytes[target];
      }
    }
  }
}

SubsetScore Evaluator::Sum(const EvaluationCollection& collection, const EvaluationSubset& subset,
                           std::vector<WindowSums>* windows) const {
  // Every window was scored by one data rank; the others add zeros.
  static_assert(sizeof(WindowSums) == 4 * sizeof(double));
  mesh_->data().AllReduceSum({reinterpret_cast<double*>(windows->data()), 4 * windows->size()},
                             Traffic::kFiles);
  SubsetScore score;
  double bytes = 0, levanter_sum = 0;
  // Of the group of windows that is under way: what levanter calls a batch.
  WindowSums group;
  for (int64_t i = 0; i < subset.windows; ++i) {
    const WindowSums& window = (*windows)[static_cast<size_t>(i)];
    score.loss_sum += window.loss;
    score.weight += window.weight;
    bytes += window.bytes;
    group.loss += window.loss;
    group.weight += window.weight;
    group.levanter_bytes += window.levanter_bytes;
    if ((i + 1) % config_.train.batch_sequences != 0 && i + 1 != subset.windows) continue;
    if (group.weight > 0) {
      // Levanter divides by one byte a token at least.
      const double bytes_per_token = std::max(group.levanter_bytes / group.weight, 1.0);
      levanter_sum += group.loss * std::numbers::log2e / bytes_per_token;
    }
    group = {};
  }
  score.name = subset.data.name;
  score.windows = subset.windows;
  if (collection.has_exact_bytes) score.bytes = bytes;
  if (collection.has_levanter_bytes) score.levanter_sum = levanter_sum;
  return score;
}

absl::StatusOr<std::vector<SubsetScore>> Evaluator::Score(
    const Context& context, const EvaluationCollection& collection, const EvaluationSubset& subset,
    const EvaluationMoment& moment, const std::function<bool()>& should_stop,
    const std::function<void(int64_t)>& windows_done) {
  const int64_t rows = model_->options().pass.batch, length = config_.data.sequence_length;
  const Layout& layout = mesh_->layout();
  const bool twice = !moment.log_inclusion.empty();
  std::vector<std::vector<WindowSums>> windows(twice ? 2 : 1);
  for (std::vector<WindowSums>& w : windows) w.resize(static_cast<size_t>(subset.windows));
  // Every data rank makes a pass in every round, the last ones perhaps of no window.
  for (int64_t round = 0; round < subset.windows; round += rows * layout.data) {
    if (should_stop()) return absl::CancelledError("evaluation was asked to stop");
    const int64_t first = round + rows * layout.data_rank;
    const int64_t count = std::clamp<int64_t>(subset.windows - first, 0, rows);
    batch_.Resize(rows, length);
    std::fill(batch_.tokens.begin(), batch_.tokens.end(), 0u);
    std::fill(batch_.segments.begin(), batch_.segments.end(), 0);
    std::fill(batch_.loss_weight.begin(), batch_.loss_weight.end(), 0.0F);
    for (int64_t r = 0; r < count; ++r) FillRow(collection.identity, subset, first + r, r);
    batch_.pass = moment.model.pass;
    OT_RETURN_IF_ERROR(model_->Evaluate(context, ViewOf(batch_, 0), moment.model).status());
    AddPass(collection, subset, first, count, context, &windows[0]);
    if (twice) {
      model_->EvaluateWithBias(context, inclusion_);
      AddPass(collection, subset, first, count, context, &windows[1]);
    }
    windows_done(std::min(rows * layout.data, subset.windows - round));
  }
  std::vector<SubsetScore> scores;
  scores.reserve(windows.size());
  for (std::vector<WindowSums>& w : windows) scores.push_back(Sum(collection, subset, &w));
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

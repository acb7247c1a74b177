#include "trainer/config/derived.h"

#include <algorithm>
#include <cmath>

#include "losses/candidates.h"
#include "model/ngram_rows.h"
#include "optim/schedule.h"

namespace overtok {
namespace {

// Classes that a vocabulary head scores, averaged over the run's steps.
double AverageClasses(const Config& config) {
  const auto vocabulary = static_cast<double>(config.model.vocab_size);
  if (!config.loss.sampled_softmax) return vocabulary;
  if (config.train.steps > 0) {
    double sum = 0;
    for (const StageSpan& stage : Stages(config)) {
      sum += static_cast<double>(stage.end - stage.begin) * static_cast<double>(stage.candidates);
    }
    return sum / static_cast<double>(config.train.steps);
  }
  double sum = 0, begin = 0;
  for (const SampledStage& stage : config.loss.sampled_softmax->stages) {
    sum += (stage.until - begin) * static_cast<double>(stage.candidates);
    begin = stage.until;
  }
  return sum + (1 - begin) * vocabulary;
}

}  // namespace

ParameterCounts CountParameters(const ModelConfig& model) {
  const int64_t d = model.hidden_size;
  const int64_t layers = model.num_hidden_layers;
  const int64_t queries = model.num_attention_heads * model.head_dim;
  const int64_t keys = model.num_key_value_heads * model.head_dim;
  ParameterCounts counts;
  counts.embedding = model.vocab_size * d;
  counts.lm_head = model.tie_word_embeddings ? 0 : model.vocab_size * d;
  counts.attention_matrices = layers * (2 * d * queries + 2 * d * keys);
  counts.mlp_matrices = layers * 3 * d * model.intermediate_size;
  counts.norm_gains = layers * ((model.hybrid_norm ? 4 : 2) * d + 2 * model.head_dim) + d;
  if (model.ngram_embedding) {
    const int64_t width = model.ngram_embedding->width;
    for (const NgramTable& table : InputTables(*model.ngram_embedding, model.vocab_size)) {
      counts.ngram_tables += static_cast<int64_t>(table.modulus) * width;
      counts.ngram_projections += d * width;
    }
  }
  if (model.second_token_head) {
    counts.second_projection = d * d;
    counts.second_lm_head = model.vocab_size * d;
  }
  for (const HeadKind kind : HeadsOf(model)) {
    if (!IsHashed(kind)) continue;
    const int64_t width = model.ngram_head->width;
    counts.gram_tables += ClassesOf(model, kind) * width;
    counts.gram_projections += d * d + d * width;
  }
  return counts;
}

ForwardFlops LevanterForwardFlops(const ModelConfig& model, int64_t sequence_length) {
  const auto d = static_cast<double>(model.hidden_size);
  const auto m = static_cast<double>(model.intermediate_size);
  const auto layers = static_cast<double>(model.num_hidden_layers);
  const auto heads = static_cast<double>(model.num_attention_heads);
  const auto queries = static_cast<double>(model.num_attention_heads * model.head_dim);
  const auto keys = static_cast<double>(model.num_key_value_heads * model.head_dim);
  const auto window = static_cast<double>(sequence_length);
  ForwardFlops flops;
  flops.matrices = layers * (6 * d * m + 2 * d * (queries + 2 * keys) + 2 * d * d);
  flops.attention = layers * (4 * window * d + 3 * window * heads);
  flops.head = 2 * d * static_cast<double>(model.vocab_size);
  return flops;
}

ForwardFlops CausalForwardFlops(const ModelConfig& model, int64_t sequence_length) {
  const auto layers = static_cast<double>(model.num_hidden_layers);
  const auto heads = static_cast<double>(model.num_attention_heads);
  const auto queries = static_cast<double>(model.num_attention_heads * model.head_dim);
  const double attended = (static_cast<double>(sequence_length) + 1) / 2;
  ForwardFlops flops;
  flops.matrices = 2 * static_cast<double>(CountParameters(model).block_matrices());
  flops.attention = layers * attended * (4 * queries + 3 * heads);
  flops.head = 2 * static_cast<double>(model.hidden_size) * static_cast<double>(model.vocab_size);
  return flops;
}

ForwardFlops ActualForwardFlops(const Config& config) {
  const ModelConfig& model = config.model;
  const auto d = static_cast<double>(model.hidden_size);
  ForwardFlops flops = CausalForwardFlops(model, config.data.sequence_length);
  flops.head = 2 * d * AverageClasses(config);
  if (model.second_token_head) flops.second_token_head = 2 * d * d + flops.head;
  if (model.ngram_embedding) {
    const auto tables =
        model.ngram_embedding->splits * static_cast<int64_t>(model.ngram_embedding->orders.size());
    flops.ngram_embedding =
        2 * d * static_cast<double>(tables) * static_cast<double>(model.ngram_embedding->width);
  }
  const int64_t positions = config.loss.block_sequences * config.data.sequence_length;
  for (const HeadKind kind : HeadsOf(model)) {
    if (!IsHashed(kind)) continue;
    const auto width = static_cast<double>(model.ngram_head->width);
    const auto candidates = static_cast<double>(std::min(positions, ClassesOf(model, kind)));
    flops.ngram_head += 2 * d * d + 2 * d * width + 2 * width * candidates;
  }
  return flops;
}

double BackboneFlops(const ModelConfig& model, double tokens) {
  return 6 * static_cast<double>(CountParameters(model).block_matrices()) * tokens;
}

int64_t TotalTokens(const Config& config) { return config.train.steps * config.tokens_per_step(); }

int64_t KeptBatches(const Config& config) {
  if (config.data.unique_tokens) return *config.data.unique_tokens / config.tokens_per_step();
  if (!config.data.passes) return 0;
  // nearbyint rounds half to even in the default mode, which nothing here changes.
  return static_cast<int64_t>(
      std::nearbyint(static_cast<double>(config.train.steps) / *config.data.passes));
}

double BatchesPerPass(const Config& config, int64_t windows) {
  const int64_t kept = KeptBatches(config);
  if (kept > 0) return static_cast<double>(kept);
  if (windows < 1 || config.data.passes || config.data.unique_tokens) return 0;
  return static_cast<double>(windows) / static_cast<double>(config.train.batch_sequences);
}

int64_t FirstStepOfPass(const Config& config, int64_t windows, double pass) {
  // A product that rounding put above a whole number is meant to be that number.
  constexpr double kSlack = 1e-9;
  return static_cast<int64_t>(std::ceil(pass * BatchesPerPass(config, windows) - kSlack));
}

std::vector<StageSpan> Stages(const Config& config) {
  const int64_t steps = config.train.steps;
  std::vector<StageSpan> spans;
  int64_t begin = 0;
  const auto add = [&](int64_t end, int64_t candidates) {
    if (end > begin) spans.push_back({begin, end, candidates});
    begin = std::max(begin, end);
  };
  if (config.loss.sampled_softmax) {
    for (const SampledStage& stage : config.loss.sampled_softmax->stages) {
      add(StageEnd(stage, steps), stage.candidates);
    }
  }
  add(steps, config.model.vocab_size);
  return spans;
}

double PassesOverData(const Config& config, int64_t windows) {
  const int64_t kept = KeptBatches(config) * config.train.batch_sequences;
  const int64_t read = kept > 0 ? std::min(kept, windows) : windows;
  return static_cast<double>(config.train.steps) *
         static_cast<double>(config.train.batch_sequences) / static_cast<double>(read);
}

int64_t FirstDecayingStep(const Config& config) {
  const ScheduleConfig& schedule = config.optimizer.schedule;
  const int64_t steps = config.train.steps;
  if (schedule.min_lr_ratio == 1) return steps;
  // The first step of a fall still has the full rate.
  const int64_t full =
      schedule.type == ScheduleConfig::Type::kCosine
          ? schedule.warmup_steps
          : std::max(schedule.warmup_steps - 1, steps - DecaySteps(schedule, steps));
  return std::min(full + 1, steps);
}

}  // namespace overtok

#include "trainer/config/derived.h"

#include <algorithm>
#include <cmath>

#include "optim/schedule.h"

namespace overtok {

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

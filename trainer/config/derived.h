// What follows from a configuration by arithmetic: parameter counts, floating-point operations,
// tokens, and the step numbers of the schedule. Pure functions; nothing is allocated. Letters: V
// vocabulary, d hidden, m MLP inner, L layers, H query heads, K key/value heads, D head width, S
// window length. The formulas are explained in docs/configuration.md.
#pragma once

#include <cstdint>

#include "trainer/config/config.h"

namespace overtok {

struct ParameterCounts {
  int64_t embedding = 0;           // V d
  int64_t lm_head = 0;             // V d; 0 when tied
  int64_t attention_matrices = 0;  // L (2 d H D + 2 d K D)
  int64_t mlp_matrices = 0;        // L 3 d m
  int64_t norm_gains = 0;          // L (2 d, or 4 d with hybrid norm, + 2 D) + d

  int64_t block_matrices() const { return attention_matrices + mlp_matrices; }
  // The optimizer's groups.
  int64_t muonh() const { return block_matrices(); }
  int64_t adamh() const { return lm_head; }
  int64_t adam() const { return embedding + norm_gains; }
  int64_t total() const { return muonh() + adamh() + adam(); }
};
ParameterCounts CountParameters(const ModelConfig& model);

// Floating-point operations of the forward pass for one token. A backward pass costs twice as much;
// embedding lookups cost nothing; a tied head costs what an untied one does.
struct ForwardFlops {
  double matrices = 0;   // products with the matrices of the blocks
  double attention = 0;  // scores, softmax, weighted values
  double head = 0;       // logits

  double total() const { return matrices + attention + head; }
  double training() const { return 3 * total(); }  // forward and backward, no recomputation
};
// As levanter counts, which is what throughput/total_gflops means elsewhere: L (6 d m + 2 d (H D +
// 2 K D) + 2 d^2 + 4 S d + 3 S H) + 2 d V. Every position attends to all S positions, and the
// output projection and attention count d where H D would be exact.
ForwardFlops LevanterForwardFlops(const ModelConfig& model, int64_t sequence_length);
// What a causal model computes: position t attends to t + 1 positions, (S + 1) / 2 on average, and
// heads are H D wide. Document borders inside a window are not subtracted.
ForwardFlops CausalForwardFlops(const ModelConfig& model, int64_t sequence_length);

// 6 N D: N = block_matrices(), D = `tokens`, repeated ones counted each time.
double BackboneFlops(const ModelConfig& model, double tokens);

// Tokens of all batches of the run; needs train.steps.
int64_t TotalTokens(const Config& config);

// Batches of the order that data.passes or data.unique_tokens keep (before the order starts again);
// 0: no limit. passes: round(steps / p), half to even; needs train.steps then.
int64_t KeptBatches(const Config& config);

// Times that the run reads each window it may read, on average; `windows` (> 0) are those of the
// corpus.
double PassesOverData(const Config& config, int64_t windows);

// The first step whose rate is below the full one after the warm-up; train.steps when none is.
int64_t FirstDecayingStep(const Config& config);

}  // namespace overtok

// What follows from a configuration by arithmetic: parameter counts, floating-point operations,
// tokens, and the step numbers of the schedule. Pure functions; nothing is allocated. Letters: V
// vocabulary, d hidden, m MLP inner, L layers, H query heads, K key/value heads, D head width, S
// window length. The formulas are explained in docs/configuration.md.
#pragma once

#include <cstdint>
#include <vector>

#include "trainer/config/config.h"

namespace overtok {

struct ParameterCounts {
  int64_t embedding = 0;           // V d
  int64_t lm_head = 0;             // V d; 0 when tied
  int64_t attention_matrices = 0;  // L (2 d H D + 2 d K D)
  int64_t mlp_matrices = 0;        // L 3 d m
  int64_t norm_gains = 0;          // L (2 d, or 4 d with hybrid norm, + 2 D) + d
  // What the methods add; w is the width of the tables concerned.
  int64_t ngram_tables = 0;       // w for each row of each input table
  int64_t ngram_projections = 0;  // d w for each input table
  int64_t second_projection = 0;  // d d
  int64_t second_lm_head = 0;     // V d
  int64_t gram_tables = 0;        // w for each class of each n-gram head
  int64_t gram_projections = 0;   // d d + d w for each n-gram head

  int64_t block_matrices() const { return attention_matrices + mlp_matrices; }
  int64_t baseline() const { return embedding + lm_head + block_matrices() + norm_gains; }
  int64_t tables() const { return ngram_tables + gram_tables; }
  // The optimizer's groups.
  int64_t muonh() const {
    return block_matrices() + ngram_projections + second_projection + gram_projections;
  }
  int64_t adamh() const { return lm_head + second_lm_head; }
  int64_t adam() const { return embedding + norm_gains + tables(); }
  int64_t total() const { return muonh() + adamh() + adam(); }
};
ParameterCounts CountParameters(const ModelConfig& model);

// Floating-point operations of the forward pass for one token. A backward pass costs twice as much;
// embedding lookups cost nothing; a tied head costs what an untied one does.
struct ForwardFlops {
  double matrices = 0;   // products with the matrices of the blocks
  double attention = 0;  // scores, softmax, weighted values
  double head = 0;       // logits of the next token
  // What the methods add, in ActualForwardFlops only.
  double ngram_embedding = 0;    // 2 d w for each input table
  double second_token_head = 0;  // 2 d d and the logits
  double ngram_head = 0;  // for each head 2 d d, 2 d for each candidate, 2 d w to compose one

  double total() const {
    return matrices + attention + head + ngram_embedding + second_token_head + ngram_head;
  }
  double training() const { return 3 * total(); }  // forward and backward, no recomputation
};
// As levanter counts, which is what throughput/total_gflops means elsewhere: L (6 d m + 2 d (H D +
// 2 K D) + 2 d^2 + 4 S d + 3 S H) + 2 d V. Every position attends to all S positions, and the
// output projection and attention count d where H D would be exact. The methods do not change it:
// it says how fast the baseline would have to run to be as far.
ForwardFlops LevanterForwardFlops(const ModelConfig& model, int64_t sequence_length);
// What a causal model computes: position t attends to t + 1 positions, (S + 1) / 2 on average, and
// heads are H D wide. Document borders inside a window are not subtracted. Of the baseline too.
ForwardFlops CausalForwardFlops(const ModelConfig& model, int64_t sequence_length);
// What a run of this configuration computes: the causal count, with what the methods add, and with
// the logits of the candidates instead of all classes while they are sampled, averaged over the
// run's steps (blocks that overflow their set are not foreseen).
ForwardFlops ActualForwardFlops(const Config& config);

// 6 N D: N = block_matrices(), D = `tokens`, repeated ones counted each time.
double BackboneFlops(const ModelConfig& model, double tokens);

// Tokens of all batches of the run; needs train.steps.
int64_t TotalTokens(const Config& config);

// Batches of the order that data.passes or data.unique_tokens keep (before the order starts again);
// 0: no limit. passes: round(steps / p), half to even; needs train.steps then.
int64_t KeptBatches(const Config& config);

// Batches after which the order of the data starts again, not necessarily whole: the kept ones, or
// windows / B; 0: not known (`windows` < 1, or the steps that data.passes divides are not known).
double BatchesPerPass(const Config& config, int64_t windows);
// The first step all of whose windows belong to pass `pass` (from 0) or a later one: ceil(pass *
// batches of a pass). Needs BatchesPerPass > 0.
int64_t FirstStepOfPass(const Config& config, int64_t windows, double pass);

// The steps [begin, end) of one stage of the vocabulary heads' losses.
struct StageSpan {
  int64_t begin = 0, end = 0;
  int64_t candidates = 0;  // V: the full softmax
};
// All stages of the run in order, those of no step left out. Needs train.steps.
std::vector<StageSpan> Stages(const Config& config);

// Times that the run reads each window it may read, on average; `windows` (> 0) are those of the
// corpus.
double PassesOverData(const Config& config, int64_t windows);

// The first step whose rate is below the full one after the warm-up; train.steps when none is.
int64_t FirstDecayingStep(const Config& config);

}  // namespace overtok

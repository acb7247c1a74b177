// How likely each class is to be a candidate of a sampled softmax, measured on the run's own data:
// what inclusion-adjusted evaluation adds to the logits, and whether a stage's P holds the labels
// of a block at all (docs/training.md). Reads up to 64 blocks of ids, nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/status.h"
#include "data/order.h"
#include "data/shard.h"
#include "trainer/config/config.h"

namespace overtok {

inline constexpr int64_t kSampledBlocks = 64;

// Labels of blocks of loss.block_sequences windows.
struct LabelSample {
  int64_t blocks = 0;         // measured
  double mean_distinct = 0;   // T
  int64_t most_distinct = 0;  // of one block
  std::vector<double> share;  // [V] q_c: share of the blocks in which class c is a label
};

// Up to kSampledBlocks blocks spread evenly over the run: a pure function of corpus, order and
// configuration. Needs train.steps.
absl::StatusOr<LabelSample> SampleLabels(const Config& config, const Corpus& corpus,
                                         const Order& order);

// [V] log pi_c with pi_c = q_c + (1 - q_c) (P - T) / (V - T): a class is there as a label, or else
// drawn like any other that is none. All zero where P >= V, and where P <= T: such blocks overflow
// and use every class.
std::vector<float> LogInclusion(const LabelSample& sample, int64_t candidates);

// One text for each stage whose P some measured block exceeds.
std::vector<std::string> CandidateWarnings(const Config& config, const LabelSample& sample);

}  // namespace overtok

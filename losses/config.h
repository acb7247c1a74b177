// The training loss: the section `loss` of a configuration, resolved (no `auto` left) and checked.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace overtok {

// What is added to the logits of negatives, so that the sum over candidates estimates the sum over
// all classes (docs/methods/sampled_softmax.md).
enum class Correction : uint8_t {
  kNone,       // nothing: the published form
  kInclusion,  // log((V - T) / (P - T)), T classes of the block being labels
};
// Where a candidate set's negatives come from.
enum class Negatives : uint8_t {
  kSweep,    // a fixed permutation of the classes, walked from an offset drawn for each step
  kUniform,  // drawn without replacement from the classes that are no labels
};

// The candidates of the steps before round(until * steps), from the end of the stage before.
struct SampledStage {
  double until = 0;        // fraction of the run's steps, in (0, 1]
  int64_t candidates = 0;  // P, at most V
  bool operator==(const SampledStage&) const = default;
};

struct SampledSoftmaxConfig {
  std::vector<SampledStage> stages;  // `until` ascending; after the last one the full softmax
  Correction correction = Correction::kNone;
  Negatives negatives = Negatives::kSweep;
};

struct LossConfig {
  // Weight of the mean of (log sum exp of the logits)^2, added to the cross-entropy; 0: off. It is
  // reported apart from the cross-entropy. Main head only.
  double z_loss = 0;
  // gamma of (1 - p)^gamma times the cross-entropy, p the target's probability; 0: off. Main and
  // second head.
  double focal_gamma = 0;
  std::optional<SampledSoftmaxConfig> sampled_softmax;  // not set: full softmax throughout
  // Windows that share one candidate set; divides the batch. Hashed n-gram heads use it as well.
  int64_t block_sequences = 1;
};

}  // namespace overtok

// An independent forward pass in double, by plain loops over the formulas of docs/model.md and
// docs/methods/: the loss of a batch as a function of parameters by name. Dense everywhere (masks,
// logits, tables): for tiny shapes. Its finite differences judge the model's gradients. Candidate
// sets are given, not made.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"

namespace overtok::testing {

using ReferenceParameters = std::map<std::string, std::vector<double>>;

struct ReferenceBatch {
  int64_t sequences = 0, length = 0;
  std::vector<uint32_t> tokens;    // [B, S]
  std::vector<int32_t> segments;   // [B, S]
  std::vector<float> loss_weight;  // [B, S]
};

// What a block of windows is scored over: these classes, each logit plus its bias. No ids: all
// classes.
struct ReferenceSet {
  std::vector<uint32_t> ids;
  std::vector<double> bias;
};

struct ReferenceMethods {
  double focal_gamma = 0;
  int64_t block_sequences = 1;
  std::map<std::string, std::vector<ReferenceSet>> sets;  // by head ("main", ...), one a block
};

struct ReferenceLoss {
  std::map<std::string, double> heads;  // weighted mean of each head's loss; 0 without weight
  double lse_squared = 0;               // weighted mean of lse^2 of the main head
  double total = 0;                     // heads times their weights; no z-loss
};

ReferenceLoss ComputeReferenceLoss(const ModelConfig& config, const ReferenceMethods& methods,
                                   const ReferenceParameters& parameters,
                                   const ReferenceBatch& batch);

}  // namespace overtok::testing

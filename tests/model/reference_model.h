// An independent forward pass in double, by plain loops over the formulas of docs/model.md: the
// loss of a batch as a function of parameters by name. Dense everywhere (masks, logits): for tiny
// shapes. Its finite differences judge the model's gradients.
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

struct ReferenceLoss {
  double cross_entropy = 0;  // weighted mean; 0 without weight
  double lse_squared = 0;    // weighted mean of lse^2
};

ReferenceLoss ComputeReferenceLoss(const ModelConfig& config, const ReferenceParameters& parameters,
                                   const ReferenceBatch& batch);

}  // namespace overtok::testing

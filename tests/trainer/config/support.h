// A small valid configuration to vary.
#pragma once

#include <string>
#include <vector>

#include "trainer/config/load.h"

namespace overtok::testing {

inline constexpr char kSmallConfig[] = R"(model:
  vocab_size: 100
  hidden_size: 32
  intermediate_size: 48
  num_hidden_layers: 2
  num_attention_heads: 4
optimizer:
  lr: 0.02
  adam_lr: 0.008
data:
  sequence_length: 16
train:
  steps: 20
  batch_sequences: 8
)";

inline absl::StatusOr<LoadedConfig> LoadSmall(const std::vector<std::string>& overrides = {}) {
  return LoadConfigText(kSmallConfig, "small.yaml", overrides);
}

}  // namespace overtok::testing

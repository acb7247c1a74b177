// Shape of the model: the section `model` of a configuration, resolved (no `auto` left) and
// checked. Letters as everywhere: V vocabulary, d hidden, m MLP inner, L layers, H query heads, K
// key/value heads, D head width.
#pragma once

#include <cstdint>

namespace overtok {

struct ModelConfig {
  int64_t vocab_size = 0;            // V, logical: ids are 0 .. V - 1
  int64_t hidden_size = 0;           // d
  int64_t intermediate_size = 0;     // m, width of the gate and up projections
  int64_t num_hidden_layers = 0;     // L
  int64_t num_attention_heads = 0;   // H, a multiple of K
  int64_t num_key_value_heads = 0;   // K
  int64_t head_dim = 0;              // D, even; H * D may differ from d
  double rope_theta = 10000;         // base of the rotary frequencies theta^(-2i/D)
  double rms_norm_eps = 1e-5;        // added to the mean square inside every RMSNorm
  bool hybrid_norm = true;           // norms on the outputs of attention and MLP as well
  bool tie_word_embeddings = false;  // the head reuses the token embedding; there is no lm_head
};

}  // namespace overtok

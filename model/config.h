// Shape of the model: the section `model` of a configuration, resolved (no `auto` left) and
// checked. Letters as everywhere: V vocabulary, d hidden, m MLP inner, L layers, H query heads, K
// key/value heads, D head width.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "losses/config.h"

namespace overtok {

// Hashed n-gram input tables (docs/methods/ngram_embedding.md): `splits` tables for each order, all
// tables of the lower order first.
struct NgramEmbeddingConfig {
  // The modulus of table number t, m = rows.
  enum class Moduli : uint8_t {
    kPaper,  // m + 4 t
    kPrime,  // the next unused prime at or above m that does not divide V
  };
  std::vector<int64_t> orders = {2, 3};  // ascending, each 2 or 3
  int64_t rows = 12'800'000;             // m
  int64_t splits = 1;                    // k, tables for each order
  int64_t width = 0;                     // w of a table's rows
  Moduli moduli = Moduli::kPaper;
  // Probability that a position of a training step reads zeros in place of a table's row; what
  // stays is scaled by 1 / (1 - p). Evaluation drops nothing.
  double row_dropout = 0;
  // What happens to the tables where a pass over the data begins (never at the first).
  enum class EachPass : uint8_t {
    kKeep,          // nothing
    kReinitialize,  // fresh initial values, no moments
    kRehash,        // the rows stay; another hash function names them
  };
  EachPass each_pass = EachPass::kKeep;
};

// OT-H (docs/methods/second_token_head.md): a second head predicts the token two ahead.
struct SecondTokenHeadConfig {
  double weight = 0.1;  // of its mean loss in the sum, > 0
};

// OT-2 (docs/methods/ngram_head.md): heads over hashed n-grams of the tokens ahead.
struct NgramHeadConfig {
  std::vector<int64_t> orders = {2};  // [2] or [2, 3]
  int64_t rows = 12'800'000;          // classes of the 2-gram head; the 3-gram head has 4 more
  int64_t width = 0;                  // w of a class's table row
  double weight = 0.1;                // of each head's mean loss in the sum, > 0
  Correction correction = Correction::kNone;
};

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
  std::optional<NgramEmbeddingConfig> ngram_embedding;
  std::optional<SecondTokenHeadConfig> second_token_head;
  std::optional<NgramHeadConfig> ngram_head;
};

}  // namespace overtok

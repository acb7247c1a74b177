// Where the parameters of a model are in a Hugging Face checkpoint of the architecture Qwen3 (names
// of Qwen3ForCausalLM), and which have no place there. Nothing is transposed or permuted: both
// sides keep linear maps as [out, in] and rotate the two halves of a head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "model/config.h"

namespace overtok {

struct HfPlace {
  std::string name;     // of our parameter, docs/model.md: "layers.0.attn.q_proj.weight"
  std::string hf_name;  // "model.layers.0.self_attn.q_proj.weight"
  Shape shape;          // logical, in both
};

inline constexpr char kHfEmbedding[] = "model.embed_tokens.weight";
inline constexpr char kHfHead[] = "lm_head.weight";

// Every parameter of the model that Qwen3 has, in the order of the model.
std::vector<HfPlace> HfPlaces(const ModelConfig& model);

// What happens with parameters of the model that Qwen3 does not have (output norms of hybrid norm,
// hashed tables, further heads) when its weights are read.
enum class NewParameters : uint8_t {
  kRefuse,  // an error that names them
  kDraw,    // they keep the values that they have, those drawn from the seed
};

// What the model has and Qwen3 has not, as the key that adds it and the parameters:
// "model.hybrid_norm (layers.*.attn_out_norm.weight, layers.*.mlp_out_norm.weight)".
std::vector<std::string> WithoutHfPlace(const ModelConfig& model);

}  // namespace overtok

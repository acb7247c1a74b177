#include "model/hf_names.h"

#include "absl/strings/str_cat.h"

namespace overtok {

std::vector<HfPlace> HfPlaces(const ModelConfig& model) {
  const int64_t d = model.hidden_size, m = model.intermediate_size;
  const int64_t q = model.num_attention_heads * model.head_dim;
  const int64_t kv = model.num_key_value_heads * model.head_dim;
  std::vector<HfPlace> places;
  places.push_back({"embed.weight", kHfEmbedding, {model.vocab_size, d}});
  for (int64_t i = 0; i < model.num_hidden_layers; ++i) {
    const auto add = [&](const char* name, const char* hf_name, Shape shape) {
      places.push_back({absl::StrCat("layers.", i, ".", name, ".weight"),
                        absl::StrCat("model.layers.", i, ".", hf_name, ".weight"), shape});
    };
    add("attn_in_norm", "input_layernorm", {d});
    add("attn.q_proj", "self_attn.q_proj", {q, d});
    add("attn.k_proj", "self_attn.k_proj", {kv, d});
    add("attn.v_proj", "self_attn.v_proj", {kv, d});
    add("attn.q_norm", "self_attn.q_norm", {model.head_dim});
    add("attn.k_norm", "self_attn.k_norm", {model.head_dim});
    add("attn.o_proj", "self_attn.o_proj", {d, q});
    add("mlp_in_norm", "post_attention_layernorm", {d});
    add("mlp.gate_proj", "mlp.gate_proj", {m, d});
    add("mlp.up_proj", "mlp.up_proj", {m, d});
    add("mlp.down_proj", "mlp.down_proj", {d, m});
  }
  places.push_back({"final_norm.weight", "model.norm.weight", {d}});
  if (!model.tie_word_embeddings) {
    places.push_back({"lm_head.weight", kHfHead, {model.vocab_size, d}});
  }
  return places;
}

std::vector<std::string> WithoutHfPlace(const ModelConfig& model) {
  std::vector<std::string> keys;
  if (model.hybrid_norm) {
    keys.emplace_back(
        "model.hybrid_norm (layers.*.attn_out_norm.weight, layers.*.mlp_out_norm.weight)");
  }
  if (model.ngram_embedding.has_value()) {
    keys.emplace_back("model.ngram_embedding (ngram.*.table.weight, ngram.*.proj.weight)");
  }
  if (model.second_token_head.has_value()) {
    keys.emplace_back("model.second_token_head (head2.proj.weight, head2.lm_head.weight)");
  }
  if (model.ngram_head.has_value()) {
    keys.emplace_back("model.ngram_head (gram*.proj.weight, gram*.table.weight, gram*.out.weight)");
  }
  return keys;
}

}  // namespace overtok

#include "tests/trainer/stored_model.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "core/check.h"
#include "core/io/files.h"
#include "tests/core/io/hand_made_safetensors.h"

namespace overtok::testing {
namespace {

int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t size : shape) elements *= size;
  return elements;
}

template <class T>
void Append(T value, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&value), sizeof(T));
}

}  // namespace

ModelConfig SmallQwen3(int64_t heads, int64_t kv_heads, bool tied) {
  ModelConfig model;
  model.vocab_size = 101;
  model.hidden_size = 48;
  model.intermediate_size = 56;
  model.num_hidden_layers = 2;
  model.num_attention_heads = heads;
  model.num_key_value_heads = kv_heads;
  model.head_dim = 8;
  model.rope_theta = 500000;
  model.rms_norm_eps = 1e-6;
  model.hybrid_norm = false;
  model.tie_word_embeddings = tied;
  return model;
}

StoredModel Store(const ModelConfig& model) {
  StoredModel stored;
  const int64_t d = 48, m = 56, q = model.num_attention_heads * 8;
  const int64_t kv = model.num_key_value_heads * 8;
  stored.shapes["model.embed_tokens.weight"] = {101, d};
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      stored.shapes[absl::StrCat(layer, name)] = std::move(shape);
    };
    add("input_layernorm.weight", {d});
    add("self_attn.q_proj.weight", {q, d});
    add("self_attn.k_proj.weight", {kv, d});
    add("self_attn.v_proj.weight", {kv, d});
    add("self_attn.q_norm.weight", {8});
    add("self_attn.k_norm.weight", {8});
    add("self_attn.o_proj.weight", {d, q});
    add("post_attention_layernorm.weight", {d});
    add("mlp.gate_proj.weight", {m, d});
    add("mlp.up_proj.weight", {m, d});
    add("mlp.down_proj.weight", {d, m});
  }
  stored.shapes["model.norm.weight"] = {d};
  if (!model.tie_word_embeddings) stored.shapes["lm_head.weight"] = {101, d};
  stored.config = absl::StrCat(
      R"({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 101,
          "hidden_size": 48, "intermediate_size": 56, "num_hidden_layers": 2,
          "num_attention_heads": )",
      model.num_attention_heads, R"(, "num_key_value_heads": )", model.num_key_value_heads,
      R"(, "head_dim": 8, "rope_theta": 500000.0, "rms_norm_eps": 1e-06, "hidden_act": "silu",
          "attention_bias": false, "rope_scaling": null, "max_position_embeddings": 64,
          "tie_word_embeddings": )",
      model.tie_word_embeddings ? "true" : "false", "}");
  return stored;
}

float StoredModel::ValueOf(const std::string& name, int64_t element) const {
  const bool twin = name == "lm_head.weight" && absl::StrContains(config, "embeddings\": true");
  const auto at = shapes.find(twin ? "model.embed_tokens.weight" : name);
  OT_CHECK(at != shapes.end()) << name;
  const auto number = std::distance(shapes.begin(), at);
  return static_cast<float>(number * 8192 + element + 1);
}

absl::Status StoredModel::Write(const std::string& directory, int files) const {
  std::vector<std::string> entries(static_cast<size_t>(files)), data(entries);
  std::string map;
  size_t i = 0;
  for (const auto& [name, shape] : shapes) {
    const size_t file = i++ % entries.size();
    const auto type = types.find(name);
    const std::string dtype = type == types.end() ? "F32" : type->second;
    const int64_t begin = static_cast<int64_t>(data[file].size());
    const auto others = changed.find(name);
    for (int64_t e = 0; e < Elements(shape); ++e) {
      double value = static_cast<double>(ValueOf(name, e));
      if (others != changed.end() && others->second.count(e) > 0) value = others->second.at(e);
      if (dtype == "F32") {
        Append(static_cast<float>(value), &data[file]);
      } else if (dtype == "F64") {
        Append(value, &data[file]);
      } else {
        OT_CHECK(dtype == "I32") << dtype;
        Append(static_cast<int32_t>(value), &data[file]);
      }
    }
    absl::StrAppend(&entries[file], entries[file].empty() ? "" : ",",
                    Entry(name, dtype, absl::StrCat("[", absl::StrJoin(shape, ","), "]"), begin,
                          static_cast<int64_t>(data[file].size())));
    absl::StrAppend(&map, map.empty() ? "" : ",", "\"", name, "\":\"part-", file, ".safetensors\"");
  }
  OT_RETURN_IF_ERROR(WriteFileAtomically(JoinPath(directory, "config.json"), config));
  if (files == 1) {
    return WriteFileAtomically(JoinPath(directory, "model.safetensors"),
                               SafetensorsBytes(Object(entries[0]), data[0]));
  }
  for (size_t file = 0; file < entries.size(); ++file) {
    OT_RETURN_IF_ERROR(
        WriteFileAtomically(JoinPath(directory, absl::StrCat("part-", file, ".safetensors")),
                            SafetensorsBytes(Object(entries[file]), data[file])));
  }
  return WriteFileAtomically(JoinPath(directory, "model.safetensors.index.json"),
                             absl::StrCat("{\"weight_map\":{", map, "}}"));
}

std::string StoredName(const std::string& name) {
  if (name == "lm_head.weight") return name;
  return absl::StrCat("model.",
                      absl::StrReplaceAll(name, {{"embed.", "embed_tokens."},
                                                 {"final_norm", "norm"},
                                                 {"attn_in_norm", "input_layernorm"},
                                                 {"mlp_in_norm", "post_attention_layernorm"},
                                                 {".attn.", ".self_attn."}}));
}

RankPart PartOfRank(const ModelConfig& model, int64_t tensor, int64_t rank, Split vocabulary) {
  RankPart part;
  const int64_t d = 48, m = 56, heads = model.num_attention_heads;
  const int64_t kv_heads = model.num_key_value_heads;
  const auto add = [&](const std::string& name, const Shape& shape, Sharding sharding) {
    if (sharding.parts == 1) sharding = Sharding();
    const Region region = Region::Part(shape, sharding);
    part.buffers.emplace_back(static_cast<size_t>(region.count), -1.0F);
    part.tensors.push_back({name, region, Tensor()});
    part.bytes += region.count * 4;
  };
  const Sharding rows = {Split::kRows, tensor, rank, 1},
                 columns = {Split::kColumns, tensor, rank, 1};
  const Sharding by_head = {Split::kRows, tensor, rank, 8};
  // Fewer heads than ranks: neighbours hold the same.
  const int64_t kv_parts = std::min(tensor, kv_heads);
  const Sharding by_kv_head = {Split::kRows, kv_parts, rank / (tensor / kv_parts), 8};
  const Sharding dealt = {vocabulary, tensor, rank, 1};
  add("embed.weight", {101, d}, dealt);
  for (const std::string layer : {"layers.0.", "layers.1."}) {
    add(layer + "attn_in_norm.weight", {d}, {});
    add(layer + "attn.q_proj.weight", {heads * 8, d}, by_head);
    add(layer + "attn.k_proj.weight", {kv_heads * 8, d}, by_kv_head);
    add(layer + "attn.v_proj.weight", {kv_heads * 8, d}, by_kv_head);
    add(layer + "attn.q_norm.weight", {8}, {});
    add(layer + "attn.k_norm.weight", {8}, {});
    add(layer + "attn.o_proj.weight", {d, heads * 8}, {Split::kColumns, tensor, rank, 8});
    add(layer + "mlp_in_norm.weight", {d}, {});
    add(layer + "mlp.gate_proj.weight", {m, d}, rows);
    add(layer + "mlp.up_proj.weight", {m, d}, rows);
    add(layer + "mlp.down_proj.weight", {d, m}, columns);
  }
  add("final_norm.weight", {d}, {});
  if (!model.tie_word_embeddings) add("lm_head.weight", {101, d}, dealt);
  for (size_t i = 0; i < part.tensors.size(); ++i) {
    const Region& region = part.tensors[i].region;
    part.tensors[i].tensor =
        Tensor(part.buffers[i].data(), LocalShape(region.sharding, region.logical));
  }
  return part;
}

}  // namespace overtok::testing

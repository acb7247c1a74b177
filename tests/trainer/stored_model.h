// A small Qwen3 checkpoint on disk for tests of initial weights, written byte by byte with names
// spelled out here: nothing of it comes from the code under test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/sharding.h"
#include "core/status.h"
#include "model/config.h"

namespace overtok::testing {

// V = 101, d = 48, m = 56, L = 2, D = 8: H D differs from d, and little divides anything.
ModelConfig SmallQwen3(int64_t heads, int64_t kv_heads, bool tied);

struct StoredModel {
  std::map<std::string, std::vector<int64_t>> shapes;  // by name
  std::map<std::string, std::string> types;            // of those that are not F32
  std::string config;                                  // config.json

  // Of a row-major element: a whole number that no other element of any tensor has. The embedding
  // and the head of a tied model have the same.
  float ValueOf(const std::string& name, int64_t element) const;
  // model.safetensors (or `files` files and an index) and config.json.
  absl::Status Write(const std::string& directory, int files = 1) const;

  std::map<std::string, std::map<int64_t, double>> changed;  // other values: tensor, element
};
StoredModel Store(const ModelConfig& model);

// Of a name of ours, the name in the checkpoint.
std::string StoredName(const std::string& name);

// Parts of all parameters that one rank of a tensor group holds, with their buffers.
struct RankPart {
  std::vector<std::vector<float>> buffers;
  std::vector<ShardedTensor> tensors;
  int64_t bytes = 0;  // of the parts, as f32
};
RankPart PartOfRank(const ModelConfig& model, int64_t tensor, int64_t rank, Split vocabulary);

}  // namespace overtok::testing

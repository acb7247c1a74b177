// The sizes of the ops that `overtok bench ops` times: what a model gives them in one micro-batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"

namespace overtok {

struct OpShapes {
  std::string name;
  int64_t batch = 0, length = 0;  // windows of a micro-batch, and their length
  int64_t width = 0, inner = 0, heads = 0, kv_heads = 0, head_width = 0, layers = 0;
  int64_t vocabulary = 0;
  int64_t candidates = 0;                     // P of the sampled head; 0: no such products
  int64_t tile_rows = 0, candidate_rows = 0;  // of logits over V, and over P classes
  int64_t table_rows = 0, table_width = 0, touched = 0;
  std::vector<DType> activations, newton_schulz;

  int64_t tokens() const { return batch * length; }
};

// "small": a model of some hundred million parameters on one machine's CPU; "130m", "300m", "520m",
// "1_2b": configs/recipes/ with bf16 activations, the candidates of the first sampled stage, and
// tables of fewer rows than the recipes' (2^21), of which a step of the batch touches as many as of
// those.
absl::StatusOr<OpShapes> OpShapesNamed(absl::string_view name);
std::vector<std::string> OpShapeNames();

}  // namespace overtok

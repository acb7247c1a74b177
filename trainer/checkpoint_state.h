// What a checkpoint keeps beside its tensors: state.json (docs/formats/checkpoint.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/shard.h"

namespace overtok {

// What has to agree between a checkpoint and what reads it, as (name, value) pairs of text: keys of
// the configuration, hashes of tokenizer and data. What may change between two starts of a run
// (rates, horizon, evaluation, the layout of its ranks) is not in it.
using Identity = std::vector<std::pair<std::string, std::string>>;

// Best evaluation so far.
struct BestValue {
  std::string metric;
  double value = 0;
  int64_t step = 0;
  bool operator==(const BestValue&) const = default;
};

// Everything a run needs to go on, beside its tensors.
struct TrainingState {
  int64_t step = 0;             // completed optimizer steps
  int64_t sequences = 0;        // windows consumed
  int64_t tokens = 0;           // ids consumed, repeated ones too
  uint64_t ids_hash = 0;        // rolling hash of all ids consumed
  int64_t metrics_bytes = 0;    // length of metrics.jsonl at that moment
  int64_t evaluated_step = -1;  // step of the last evaluation that is in metrics.jsonl
  std::optional<BestValue> best;
  int threads = 0;                       // equal bits are promised at this number of threads
  int data_ranks = 1, tensor_ranks = 1;  // the mesh that computed it
  // Of all names, shapes and bytes of model and optimizer, whatever the layout; filled by saving.
  // Two runs with equal hashes have equal bits.
  uint64_t model_hash = 0, optimizer_hash = 0;
  Identity identity;
  // Tokenizer, special ids and document form of the corpus: evaluation text is encoded the same
  // way.
  ShardIdentity data;
};

std::string ToText(const TrainingState& state);
// Errors name `path`: what is no such file, or has another version.
absl::StatusOr<TrainingState> ParseState(absl::string_view path, const std::string& text);

// An error naming the first entry of `expected` that `found` (of the checkpoint at `path`) lacks or
// has another value for. One that is null may be lacking: what it turns off came later than the
// checkpoint.
absl::Status CheckIdentity(absl::string_view path, const Identity& found, const Identity& expected);

}  // namespace overtok

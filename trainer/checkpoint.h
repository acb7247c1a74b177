// Checkpoints of a run: checkpoints/step-XXXXXXXX/ with model.h5, optimizer.h5, state.json and, as
// the last thing written, the mark `complete` (docs/formats/checkpoint.md). A directory without the
// mark is what an interrupted save left and is never read. Tensors go from and to their own memory;
// no copy of the model is made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/parameter.h"
#include "core/status.h"
#include "data/shard.h"

namespace overtok {

// What has to agree between a checkpoint and what reads it, as (name, value) pairs of text: keys of
// the configuration, hashes of tokenizer and data. What may change between two starts of a run
// (rates, horizon, evaluation) is not in it.
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
  int threads = 0;  // equal bits are promised at this number of threads
  // Of all names and bytes in model.h5 and optimizer.h5; filled by Save and ReadState. Two runs
  // with equal hashes have equal bits.
  uint64_t model_hash = 0, optimizer_hash = 0;
  Identity identity;
  // Tokenizer, special ids and document form of the corpus: evaluation text is encoded the same
  // way.
  ShardIdentity data;
};

class CheckpointStore {
 public:
  // `directory`: the folder checkpoints/ of a run. `keep`: marked checkpoints that stay, >= 1.
  CheckpointStore(std::string directory, int64_t keep)
      : directory_(std::move(directory)), keep_(keep) {}

  // Steps of the marked checkpoints, ascending; none where the directory does not exist.
  absl::StatusOr<std::vector<int64_t>> Marked() const;
  std::string PathOf(int64_t step) const;  // <directory>/step-XXXXXXXX

  // Writes the checkpoint of state.step, then removes old ones beyond `keep` and leftovers of
  // interrupted saves. A marked one of that step stays as it is. On an error all marked checkpoints
  // are still there.
  absl::Status Save(const TrainingState& state, const ParameterSet& parameters,
                    const std::vector<NamedState>& optimizer) const;

  // The state of a marked checkpoint; checks mark, sizes and the state's checksum.
  absl::StatusOr<TrainingState> ReadState(int64_t step) const;
  // Fills the parameters' values from the checkpoint; names, shapes and checksums must agree.
  absl::Status LoadModel(int64_t step, ParameterSet* parameters) const;
  absl::Status LoadOptimizer(int64_t step, const std::vector<NamedState>& optimizer) const;

  // Fills only the state of tables, without which their values cannot be read (what an evaluation
  // needs); the rest of the optimizer's state stays unread, and with it the hash over the whole
  // file.
  absl::Status LoadTables(int64_t step, const ParameterSet& parameters) const;

  // Bytes that Save needs on the disk, rounded up.
  static int64_t Bytes(const ParameterSet& parameters, const std::vector<NamedState>& optimizer);

 private:
  absl::Status CheckMark(int64_t step) const;
  absl::Status CheckHash(int64_t step, uint64_t found, bool model) const;
  absl::Status RemoveLeftovers(int64_t newest) const;

  std::string directory_;
  int64_t keep_;
};

// An error naming the first entry of `expected` that `found` (of the checkpoint at `path`) lacks or
// has another value for. One that is null may be lacking: what it turns off came later than the
// checkpoint.
absl::Status CheckIdentity(absl::string_view path, const Identity& found, const Identity& expected);

}  // namespace overtok

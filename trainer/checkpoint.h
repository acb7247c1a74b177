// Checkpoints of a run: checkpoints/step-XXXXXXXX/ with a data file of every rank, tensors.json
// (what lies where), state.json and, as the last thing written, the mark `complete`
// (docs/formats/checkpoint.md). A directory without the mark is what an interrupted save left and
// is never read. Each rank writes what it owns and reads what it wants, whatever the layout of the
// ranks that wrote; no copy of the model is made.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/comm/communicator.h"
#include "core/sharding.h"
#include "core/status.h"
#include "trainer/checkpoint_layout.h"
#include "trainer/checkpoint_state.h"

namespace overtok {

// Everything but PathOf and Write is collective: all ranks call it, and all get the same status
// and, apart from the tensors, the same result.
class CheckpointStore {
 public:
  // `directory`: the folder checkpoints/ of a run, on a file system that all ranks see. `keep`:
  // marked checkpoints that stay, >= 1. `world` must outlive the store.
  CheckpointStore(std::string directory, int64_t keep, Communicator* world)
      : directory_(std::move(directory)), keep_(keep), world_(world) {}
  Communicator& world() const { return *world_; }

  // Steps of the marked checkpoints, ascending; none where the directory does not exist.
  absl::StatusOr<std::vector<int64_t>> Marked() const;
  std::string PathOf(int64_t step) const;  // <directory>/step-XXXXXXXX

  // Writes the checkpoint of state.step, then removes old ones beyond `keep` and leftovers of
  // interrupted saves. A marked one of that step stays as it is. On an error of any rank all marked
  // checkpoints are still there. `model`, `optimizer`: what this rank owns; all ranks' together
  // must be every element of every tensor once, the pieces of one tensor divided in one way. Rank
  // 0's `state` counts.
  absl::Status Save(const TrainingState& state, const std::vector<ShardedTensor>& model,
                    const std::vector<ShardedTensor>& optimizer) const;

  // What Save consists of, for writing while training goes on (trainer/checkpoint_saver.h). Begin
  // checks the free space and makes a directory, whose path it returns; an empty one where the step
  // is marked already. `bytes`: Bytes() of this rank.
  absl::StatusOr<std::string> Begin(int64_t step, int64_t bytes) const;
  // Not collective: writes this rank's file.
  absl::StatusOr<StoredFile> Write(const std::string& temporary, int64_t step,
                                   const std::vector<ShardedTensor>& model,
                                   const std::vector<ShardedTensor>& optimizer) const;
  // Once `mine` is OK on all ranks, gives the directory its name and its mark.
  absl::Status Commit(const TrainingState& state, const std::string& temporary,
                      const absl::StatusOr<StoredFile>& mine) const;

  // The state of a marked checkpoint; checks mark, sizes of all files and the checksums of
  // state.json and tensors.json.
  absl::StatusOr<TrainingState> ReadState(int64_t step) const;
  // Fill `wanted` (regions of logical tensors; may differ between ranks and overlap) from the
  // checkpoint; names, logical shapes, dtypes and checksums must agree, and no tensor may be left
  // that no rank wants. After an error their elements are unspecified.
  absl::Status LoadModel(int64_t step, const std::vector<ShardedTensor>& wanted) const;
  absl::Status LoadOptimizer(int64_t step, const std::vector<ShardedTensor>& wanted) const;
  // Fills only `tables`, the state of tables, without which their values cannot be read (what an
  // evaluation needs); the rest of the optimizer's state stays unread.
  absl::Status LoadTables(int64_t step, const std::vector<ShardedTensor>& tables) const;

  // Bytes on the disk that this rank adds to a checkpoint, rounded up.
  static int64_t Bytes(const std::vector<ShardedTensor>& model,
                       const std::vector<ShardedTensor>& optimizer);

 private:
  // Of rank 0 alone.
  absl::StatusOr<std::vector<int64_t>> ListMarked() const;
  absl::StatusOr<std::string> MakeTemporary(int64_t step, int64_t bytes) const;
  absl::Status Publish(TrainingState state, const std::string& temporary,
                       const std::vector<std::string>& files) const;
  absl::Status RemoveLeftovers(int64_t newest) const;
  absl::Status CheckMark(int64_t step) const;
  // The text of tensors.json, once mark, sizes and the file itself were found good.
  absl::StatusOr<std::string> ReadLayout(int64_t step) const;

  absl::Status Load(int64_t step, CheckpointKind kind, const std::vector<ShardedTensor>& wanted,
                    bool all) const;

  std::string directory_;
  int64_t keep_;
  Communicator* world_;
};

}  // namespace overtok

// Saves at once, or in the background: then what this rank owns is copied into memory that was
// taken up front, and a thread writes the copy while training goes on. The thread sends nothing;
// agreeing, naming and marking happen in Poll, Save and Finish, which all ranks call. A process
// that ends before that leaves the checkpoint before as the newest.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/memory.h"
#include "core/sharding.h"
#include "core/status.h"
#include "trainer/checkpoint.h"

namespace overtok {

class CheckpointSaver {
 public:
  // `store` must outlive the saver. `model` and `optimizer`: what this rank owns, as the store's
  // Save wants it. With `background`, and always where the tensors are on a device with memory of
  // its own, host memory is taken for a copy of all of it, in a dry Memory none. `context`: where
  // the tensors are; must outlive the saver.
  CheckpointSaver(const CheckpointStore* store, std::vector<ShardedTensor> model,
                  std::vector<ShardedTensor> optimizer, bool background, const Context* context,
                  Memory* memory);
  CheckpointSaver(const CheckpointSaver&) = delete;
  CheckpointSaver& operator=(const CheckpointSaver&) = delete;
  // Waits for the thread; what was not finished stays without a mark.
  ~CheckpointSaver();

  // Collective. Finishes what is under way, then saves the tensors as they are now; in the
  // background it returns when they are copied, and a later call returns the error of the writing.
  absl::Status Save(const TrainingState& state);
  // Collective; call between steps. Marks the checkpoint once all ranks have written their files.
  // Sends one flag while a save is under way, and nothing otherwise.
  absl::Status Poll();
  // Collective. Waits until nothing is under way; call it at the end of a run.
  absl::Status Finish();
  // Whether a save is under way, the same on all ranks.
  bool busy() const { return thread_.joinable(); }

 private:
  const CheckpointStore* store_;
  std::vector<ShardedTensor> model_, optimizer_;
  bool background_, copied_;
  const Context* context_;
  Tensor memory_;  // of the copies, u8
  std::vector<ShardedTensor> model_copy_, optimizer_copy_;
  // Of the save under way; `written_` is the thread's until `done_`.
  TrainingState state_;
  std::string temporary_;
  std::optional<absl::StatusOr<StoredFile>> written_;
  std::atomic<bool> done_{false};
  std::thread thread_;
};

}  // namespace overtok

#include "trainer/checkpoint_saver.h"

#include <utility>

namespace overtok {
namespace {

constexpr int64_t kAlignment = 64;

int64_t Aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The same regions, with their tensors one behind the other from `*at` on. A null `base` plans.
std::vector<ShardedTensor> Placed(const std::vector<ShardedTensor>& tensors, char* base,
                                  int64_t* at) {
  std::vector<ShardedTensor> placed = tensors;
  for (ShardedTensor& entry : placed) {
    const int64_t bytes = entry.tensor.bytes();
    void* data = base == nullptr ? nullptr : base + *at;
    entry.tensor = Tensor(data, entry.tensor.dtype(), entry.tensor.shape());
    *at += Aligned(bytes);
  }
  return placed;
}

void CopyAll(const Context& context, const std::vector<ShardedTensor>& from,
             const std::vector<ShardedTensor>& to) {
  for (size_t i = 0; i < from.size(); ++i) context.Read(from[i].tensor, to[i].tensor.raw());
}

}  // namespace

CheckpointSaver::CheckpointSaver(const CheckpointStore* store, std::vector<ShardedTensor> model,
                                 std::vector<ShardedTensor> optimizer, bool background,
                                 const Context* context, Memory* memory)
    : store_(store),
      model_(std::move(model)),
      optimizer_(std::move(optimizer)),
      background_(background),
      copied_(background || context->device().own_memory()),
      context_(context) {
  if (!copied_) return;
  int64_t bytes = 0;
  Placed(model_, nullptr, &bytes);
  Placed(optimizer_, nullptr, &bytes);
  memory_ = memory->TakeHost(Purpose::kSnapshot, "snapshot of a checkpoint", DType::kU8, {bytes});
  char* base = static_cast<char*>(memory_.raw());
  int64_t at = 0;
  model_copy_ = Placed(model_, base, &at);
  optimizer_copy_ = Placed(optimizer_, base, &at);
}

CheckpointSaver::~CheckpointSaver() {
  if (thread_.joinable()) thread_.join();
}

absl::Status CheckpointSaver::Save(const TrainingState& state) {
  OT_RETURN_IF_ERROR(Finish());
  if (!copied_) return store_->Save(state, model_, optimizer_);
  if (!background_) {
    CopyAll(*context_, model_, model_copy_);
    CopyAll(*context_, optimizer_, optimizer_copy_);
    return store_->Save(state, model_copy_, optimizer_copy_);
  }
  OT_ASSIGN_OR_RETURN(temporary_,
                      store_->Begin(state.step, CheckpointStore::Bytes(model_, optimizer_)));
  if (temporary_.empty()) return absl::OkStatus();
  CopyAll(*context_, model_, model_copy_);
  CopyAll(*context_, optimizer_, optimizer_copy_);
  state_ = state;
  written_.reset();
  done_ = false;
  thread_ = std::thread([this] {
    written_ = store_->Write(temporary_, state_.step, model_copy_, optimizer_copy_);
    done_ = true;
  });
  return absl::OkStatus();
}

absl::Status CheckpointSaver::Poll() {
  if (!busy() || store_->world().Any(!done_)) return absl::OkStatus();
  return Finish();
}

absl::Status CheckpointSaver::Finish() {
  if (!busy()) return absl::OkStatus();
  thread_.join();
  return store_->Commit(state_, temporary_, *written_);
}

}  // namespace overtok

// Memory: every byte a run will use, taken before step 0 and counted by purpose. The same
// construction code runs in two modes: real (bytes are allocated, zero-filled) and dry (nothing is
// allocated, tensors have a null pointer), so that `overtok plan` prints the very numbers a run
// takes. Nothing is freed before the Memory goes.
//
// On a device with memory of its own, tensors lie there, and what the host writes for ops to read
// (ids, weights, tables of a schedule) is taken as an input: host memory with a twin on the device.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

enum class Purpose : uint8_t {
  kParameters,     // master weights
  kComputeCopies,  // bf16 copies of them
  kGradients,
  kOptimizer,    // moments and momenta
  kActivations,  // kept for the backward pass, and its gradients
  kHead,         // logit tiles
  kScratch,      // shared by ops
  kBatches,      // ids, segments, weights
  kSnapshot,     // copy of what a checkpoint is written from in the background
};
inline constexpr int kPurposes = 9;
const char* NameOf(Purpose purpose);

class Memory {
 public:
  enum class Mode : uint8_t { kReal, kDry };
  // device: null: the CPU.
  explicit Memory(Mode mode, Device* device = nullptr)
      : mode_(mode), device_(device != nullptr && device->own_memory() ? device : nullptr) {}
  // The device with memory of its own; null: the CPU.
  Device* device() const { return device_; }
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  bool dry() const { return mode_ == Mode::kDry; }
  // A zero-filled tensor, 64-byte aligned. Running out of memory aborts with what was asked for: a
  // plan is compared with the machine's memory before any tensor is taken.
  Tensor Take(Purpose purpose, absl::string_view name, DType dtype, Shape shape);
  // The same in host memory, for the host to write and ops to read through Context::OnDevice, in
  // the group of inputs that InputsOf named last.
  Tensor TakeInput(Purpose purpose, absl::string_view name, DType dtype, Shape shape);
  // While one lives, inputs that are taken belong to `group`; without one to InputGroup::kStep.
  class InputsOf {
   public:
    InputsOf(Memory* memory, InputGroup group) : memory_(memory), before_(memory->group_) {
      memory->group_ = group;
    }
    ~InputsOf() { memory_->group_ = before_; }
    InputsOf(const InputsOf&) = delete;
    InputsOf& operator=(const InputsOf&) = delete;

   private:
    Memory* memory_;
    InputGroup before_;
  };
  // The same in host memory, for the host alone.
  Tensor TakeHost(Purpose purpose, absl::string_view name, DType dtype, Shape shape);
  // The same in host memory that ops reach (Device::AllocateOnHost): ops take the tensor as it is,
  // the host goes through Context as for the device's own. On the CPU the same as Take.
  Tensor TakeOnHost(Purpose purpose, absl::string_view name, DType dtype, Shape shape);
  // Some op will need this much scratch at once, on the stream named; the largest request counts.
  void NeedScratch(int64_t bytes, StreamName stream = StreamName::kMain);
  // Allocates the scratch and gives it to the context. Call once, after every component has taken
  // its share.
  void Commit(Context* context);

  // Of tensors on the device, inputs' twins among them (on the CPU: of everything).
  int64_t bytes(Purpose purpose) const { return bytes_[static_cast<size_t>(purpose)]; }
  int64_t total() const;
  // Of host memory beside a device with memory of its own; 0 on the CPU.
  int64_t host_bytes() const { return host_bytes_; }

 private:
  enum class Place : uint8_t { kDevice, kPages, kDeviceOnHost };
  struct Block {
    Place place;
    void* data;
    int64_t bytes;
  };
  void* Allocate(Place place, int64_t bytes, absl::string_view name);
  Mode mode_;
  Device* device_;  // null: tensors are host memory
  bool committed_ = false;
  InputGroup group_ = InputGroup::kStep;
  int64_t host_bytes_ = 0;
  std::array<int64_t, kStreams> scratch_{};
  std::array<int64_t, kPurposes> bytes_{};
  std::vector<Block> blocks_;
  Context::Inputs inputs_;
};

}  // namespace overtok

// Context: where ops run. It names the device (core/device.h), holds the device's table of kernels
// (core/ops/kernels.h) and the scratch block that ops share. Ops never allocate: what they need
// beyond their arguments they take from Scratch(), whose size was planned by the components that
// call them (core/memory.h).
//
// It is also the only way between host code and a device's memory:
//   - inputs (Memory::TakeInput) are written by the host; OnDevice() names the twin that ops read,
//     and SendInputs() brings all twins up to date;
//   - Read() and Write() copy single tensors; reading waits.
// On the CPU an input is its own twin and nothing is copied.
//
// Ops of a context run one after another, on its stream. Side() is the same context on the device's
// other stream, with scratch of its own; Follow() says which of the two waits for the other.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/tensor.h"

namespace overtok {

// Inputs that are sent together.
enum class InputGroup : uint8_t {
  kStep,        // of a training step
  kEvaluation,  // of an evaluation pass
  kSchedule,    // what tables need of the schedule, in both
  kAhead,       // rows of tables in host memory, sent on the side stream before their step
};
inline constexpr int kInputGroups = 4;

class Context {
 public:
  // `kernels`: others than the device's (a profile around them).
  explicit Context(Device* device, const Kernels* kernels = nullptr)
      : device_(device), kernels_(kernels != nullptr ? kernels : &device->kernels()) {}

  DeviceKind kind() const { return device_->kind(); }
  Device& device() const { return *device_; }
  const Kernels& kernels() const { return *kernels_; }
  void SetKernels(const Kernels* kernels) { kernels_ = kernels; }
  StreamName stream_name() const { return stream_; }
  void* stream() const { return device_->stream(stream_); }
  // The same on the side stream; of no use before Memory::Commit().
  Context Side() const {
    Context side = *this;
    side.stream_ = StreamName::kSide;
    return side;
  }
  // What this context is asked for from now on waits for what `other` was asked for until now.
  void Follow(const Context& other) const { device_->Order(other.stream_, stream_); }

  // The block that Memory::Commit() allocated for a stream; every op call may use all of it,
  // nothing in it outlives the call.
  void SetScratch(void* data, int64_t bytes, StreamName stream = StreamName::kMain) {
    scratch_[static_cast<size_t>(stream)] = {data, bytes};
  }
  void* Scratch(int64_t bytes) const {
    const Block& block = scratch_[static_cast<size_t>(stream_)];
    OT_CHECK_LE(bytes, block.bytes) << "an op needs more scratch than was planned for it";
    return block.data;
  }

  // The device's twins of host memory, as Memory::Commit() hands them over, by group.
  using Inputs = std::array<std::vector<Device::Piece>, kInputGroups>;
  void SetInputs(const Inputs& inputs);
  // The twin of an input or of a part of one; of nothing (an undefined or empty tensor) itself.
  // Anything else that is not an input is a bug and aborts.
  Tensor OnDevice(const Tensor& input) const;
  // What the host has written to a group's inputs, to their twins, in order with ops of this
  // context. The host may go on writing at once.
  void SendInputs(InputGroup group) const;
  // Single tensors of the device, to and from host memory of tensor.bytes(). Reading waits for the
  // ops before; what is written may change at once.
  void Read(const Tensor& tensor, void* to) const;
  void Write(const void* from, const Tensor& tensor) const;
  void Wait() const { device_->Wait(); }

 private:
  struct Block {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  struct Twins {
    Inputs groups;
    std::vector<Device::Piece> all;  // by address of the host's memory, `from`
  };

  Device* device_;
  const Kernels* kernels_;
  StreamName stream_ = StreamName::kMain;
  std::array<Block, kStreams> scratch_;
  std::shared_ptr<const Twins> inputs_;
};

// The context of the CPU backend (core/cpu/); threads are OpenMP's.
Context CpuContext();

}  // namespace overtok

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
#pragma once

#include <cstdint>
#include <vector>

#include "core/check.h"
#include "core/device.h"
#include "core/tensor.h"

namespace overtok {

class Context {
 public:
  // `kernels`: others than the device's (a profile around them).
  explicit Context(Device* device, const Kernels* kernels = nullptr)
      : device_(device), kernels_(kernels != nullptr ? kernels : &device->kernels()) {}

  DeviceKind kind() const { return device_->kind(); }
  Device& device() const { return *device_; }
  const Kernels& kernels() const { return *kernels_; }
  void SetKernels(const Kernels* kernels) { kernels_ = kernels; }
  void* stream() const { return device_->stream(); }

  // The block that Memory::Commit() allocated; every op call may use all of it, nothing in it
  // outlives the call.
  void SetScratch(void* data, int64_t bytes) {
    scratch_ = data;
    scratch_bytes_ = bytes;
  }
  void* Scratch(int64_t bytes) const {
    OT_CHECK_LE(bytes, scratch_bytes_) << "an op needs more scratch than was planned for it";
    return scratch_;
  }

  // The device's twins of host memory, as Memory::Commit() hands them over.
  void SetInputs(std::vector<Device::Piece> inputs);
  // The twin of an input or of a part of one; of nothing (an undefined or empty tensor) itself.
  // Anything else that is not an input is a bug and aborts.
  Tensor OnDevice(const Tensor& input) const;
  // What the host has written to inputs, to their twins, in order with ops. The host may go on
  // writing at once.
  void SendInputs() const;
  // Single tensors of the device, to and from host memory of tensor.bytes(). Reading waits for the
  // ops before; what is written may change at once.
  void Read(const Tensor& tensor, void* to) const;
  void Write(const void* from, const Tensor& tensor) const;
  void Wait() const { device_->Wait(); }

 private:
  Device* device_;
  const Kernels* kernels_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
  std::vector<Device::Piece> inputs_;  // by address of the host's memory, `from`
};

// The context of the CPU backend (core/cpu/); threads are OpenMP's.
Context CpuContext();

}  // namespace overtok

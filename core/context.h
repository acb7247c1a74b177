// Context: where ops run. It names the device, holds the device's table of kernels
// (core/ops/kernels.h) and the scratch block that ops share. Ops never allocate: what they need
// beyond their arguments they take from Scratch(), whose size was planned by the components that
// call them (core/memory.h).
#pragma once

#include <cstdint>

#include "core/check.h"

namespace overtok {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Kernels;

class Context {
 public:
  Context(DeviceKind device, const Kernels* kernels) : device_(device), kernels_(kernels) {}

  DeviceKind device() const { return device_; }
  const Kernels& kernels() const { return *kernels_; }

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

 private:
  DeviceKind device_;
  const Kernels* kernels_;
  void* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

// The context of the CPU backend (core/cpu/); threads are OpenMP's.
Context CpuContext();

}  // namespace overtok

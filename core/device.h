// Device: where tensors live and ops run. The CPU's tensors are host memory; other devices have
// memory of their own, which host code must not touch: values go there and back through Context
// (core/context.h). Ops and transfers of one device run in the order in which they are asked for,
// on its stream, and the host does not wait for them unless it says so.
#pragma once

#include <cstdint>
#include <span>

#include "absl/strings/string_view.h"

namespace overtok {

struct Kernels;

enum class DeviceKind : uint8_t {
  kCpu,
  kCuda,
  kEmulated,  // the CUDA backend's kernels, run on the host (core/cuda/emulation/)
};
const char* NameOf(DeviceKind kind);  // "cpu", "cuda", "emulated"

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual const Kernels& kernels() const = 0;
  // Tensors are not host memory.
  bool own_memory() const { return kind() != DeviceKind::kCpu; }
  // The CUDA stream that ops are put on; null elsewhere.
  virtual void* stream() const { return nullptr; }

  // Zero-filled memory for tensors, 256-byte aligned; null for 0 bytes. Aborts, naming what it was
  // for, when there is none left: a plan is compared with what there is beforehand.
  virtual void* Allocate(int64_t bytes, absl::string_view name) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
  // Whether `data` lies in memory of the device's own, which host code must not touch.
  virtual bool Owns(const void* data) const = 0;
  // Bytes of memory for tensors in all, and free now.
  virtual int64_t total_bytes() const = 0;
  virtual int64_t free_bytes() const = 0;

  // One piece of host memory and its place on the device.
  struct Piece {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };
  // Host to device, in order with ops. The host's memory may change as soon as the call returns.
  virtual void Send(std::span<const Piece> pieces) = 0;
  // Device to host; waits for the ops before.
  virtual void Read(const Piece& piece) = 0;
  // Until all ops and transfers are done.
  virtual void Wait() = 0;
};

// The device of the CPU backend (core/cpu/), there once in a program.
Device* CpuDevice();

}  // namespace overtok

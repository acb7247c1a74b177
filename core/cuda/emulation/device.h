// The emulated device: the CUDA backend's kernels, run by the emulator on memory that only they and
// transfers touch. What a run does on it, launch by launch, is what it does on a GPU; products are
// the CPU backend's, with the same operands and accumulation in f32.
#pragma once

#include "core/device.h"

namespace overtok {

// There once in a program.
Device* EmulatedDevice();
// The same device with kernels whose every access is looked at (core/cuda/emulation/checker.h): for
// tests, of overtok_checked, which builds without address and thread sanitizers have.
Device* CheckedDevice();

namespace emulation {

// The emulated device with one way of compiling its kernels.
class KernelDevice : public Device {
 public:
  explicit KernelDevice(const Kernels& kernels) : kernels_(kernels) {}
  DeviceKind kind() const override { return DeviceKind::kEmulated; }
  const Kernels& kernels() const override { return kernels_; }
  void* Allocate(int64_t bytes, absl::string_view name) override;
  void Free(void* data, int64_t bytes) override;
  bool Owns(const void* data) const override;
  int64_t total_bytes() const override;
  int64_t free_bytes() const override;
  void Send(std::span<const Piece> pieces, StreamName stream) override;
  void Read(const Piece& piece) override { Send({&piece, 1}, StreamName::kMain); }
  void Wait() override {}

 private:
  const Kernels& kernels_;
};

}  // namespace emulation
}  // namespace overtok

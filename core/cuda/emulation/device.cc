#include "core/cuda/emulation/device.h"

#include <cstring>

#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/kernels.h"

namespace overtok {
namespace {

class Emulated : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kEmulated; }
  const Kernels& kernels() const override { return emulated::CudaKernels(); }
  void* Allocate(int64_t bytes, absl::string_view name) override {
    return emulation::AllocateDevice(bytes, name);
  }
  void Free(void* data, int64_t bytes) override { emulation::FreeDevice(data, bytes); }
  bool Owns(const void* data) const override { return emulation::IsDevice(data); }
  int64_t total_bytes() const override { return CpuDevice()->total_bytes(); }
  int64_t free_bytes() const override { return CpuDevice()->free_bytes(); }
  void Send(std::span<const Piece> pieces) override {
    const emulation::DeviceAccess access;
    for (const Piece& piece : pieces)
      std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
  }
  void Read(const Piece& piece) override { Send({&piece, 1}); }
  void Wait() override {}
};

}  // namespace

Device* EmulatedDevice() {
  static Emulated device;
  return &device;
}

}  // namespace overtok

#include "core/cuda/emulation/device.h"

#include <cstring>

#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/kernels.h"

namespace overtok {
namespace emulation {

void* KernelDevice::Allocate(int64_t bytes, absl::string_view name) {
  return AllocateDevice(bytes, name);
}
void KernelDevice::Free(void* data, int64_t bytes) { FreeDevice(data, bytes); }
bool KernelDevice::Owns(const void* data) const { return IsDevice(data); }
int64_t KernelDevice::total_bytes() const { return CpuDevice()->total_bytes(); }
int64_t KernelDevice::free_bytes() const { return CpuDevice()->free_bytes(); }
void KernelDevice::Send(std::span<const Piece> pieces, StreamName /*stream*/) {
  const DeviceAccess access;
  for (const Piece& piece : pieces)
    std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
}

}  // namespace emulation

Device* EmulatedDevice() {
  static emulation::KernelDevice device(emulated::CudaKernels());
  return &device;
}

}  // namespace overtok

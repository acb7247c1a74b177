// The CPU as a device: tensors are pages straight from the kernel, nothing is copied, nothing is
// waited for.
#include "core/device.h"

#include <unistd.h>

#include <cstring>

#include "core/cpu/kernels.h"
#include "core/host_memory.h"

namespace overtok {
namespace {

class Cpu : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  const Kernels& kernels() const override { return cpu::CpuKernels(); }

  void* Allocate(int64_t bytes, absl::string_view name) override {
    return AllocatePages(bytes, name);
  }
  void Free(void* data, int64_t bytes) override { FreePages(data, bytes); }
  bool Owns(const void* /*data*/) const override { return false; }
  int64_t total_bytes() const override { return Pages(_SC_PHYS_PAGES); }
  int64_t free_bytes() const override { return Pages(_SC_AVPHYS_PAGES); }

  void Send(std::span<const Piece> pieces, StreamName /*stream*/) override {
    for (const Piece& piece : pieces) Read(piece);
  }
  void Read(const Piece& piece) override {
    if (piece.to != piece.from) std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
  }
  void Wait() override {}

 private:
  static int64_t Pages(int name) {
    return static_cast<int64_t>(sysconf(name)) * static_cast<int64_t>(sysconf(_SC_PAGESIZE));
  }
};

}  // namespace

Device* CpuDevice() {
  static Cpu device;
  return &device;
}

}  // namespace overtok

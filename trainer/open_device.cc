#include "trainer/open_device.h"

#include "core/check.h"
#include "core/cuda/device.h"
#include "core/cuda/emulation/device.h"
#include "core/ops/kernels.h"

namespace overtok {
namespace {

class Planned : public Device {
 public:
  explicit Planned(DeviceKind kind) : kind_(kind) {}
  DeviceKind kind() const override { return kind_; }
  const Kernels& kernels() const override {
    static const Kernels none;
    return none;
  }
  bool Owns(const void* /*data*/) const override { return false; }
  void* Allocate(int64_t /*bytes*/, absl::string_view /*name*/) override { return Nothing(); }
  void Free(void* /*data*/, int64_t /*bytes*/) override { Nothing(); }
  int64_t total_bytes() const override { return 0; }
  int64_t free_bytes() const override { return 0; }
  void Send(std::span<const Piece> /*pieces*/) override { Nothing(); }
  void Read(const Piece& /*piece*/) override { Nothing(); }
  void Wait() override { Nothing(); }

 private:
  static void* Nothing() {
    OT_CHECK(false) << "a planned device was used";
    return nullptr;
  }
  DeviceKind kind_;
};

}  // namespace

absl::StatusOr<Device*> OpenDevice(const Config& config, int local_rank) {
  switch (config.train.device) {
    case DeviceKind::kCpu:
      return CpuDevice();
    case DeviceKind::kEmulated:
      return EmulatedDevice();
    case DeviceKind::kCuda:
      break;
  }
  return CudaDevice(local_rank);
}

Device* PlannedDevice(DeviceKind kind) {
  static Planned cuda(DeviceKind::kCuda), emulated(DeviceKind::kEmulated);
  if (kind == DeviceKind::kCpu) return CpuDevice();
  return kind == DeviceKind::kCuda ? &cuda : &emulated;
}

}  // namespace overtok

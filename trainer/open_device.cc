#include "trainer/open_device.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/comm/agreement.h"
#include "core/comm/device_place.h"
#include "core/comm/staged.h"
#include "core/console.h"
#include "core/cuda/attention_cudnn.h"
#include "core/cuda/device.h"
#include "core/cuda/emulation/device.h"
#include "core/cuda/nccl.h"
#include "core/ops/kernels.h"

namespace overtok {
namespace {

class Planned : public Device {
 public:
  explicit Planned(DeviceKind kind, AttentionKind attention = AttentionKind::kKernels)
      : kind_(kind) {
    SetAttention(attention);
  }
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
  void Send(std::span<const Piece> /*pieces*/, StreamName /*stream*/) override { Nothing(); }
  void Read(const Piece& /*piece*/) override { Nothing(); }
  void Wait() override { Nothing(); }

 private:
  static void* Nothing() {
    OT_CHECK(false) << "a planned device was used";
    return nullptr;
  }
  DeviceKind kind_;
};

// What a rank's blocks ask attention for; evaluation passes have the micro-batch's size.
PackedSizes AttentionSizes(const Config& config) {
  const ModelConfig& model = config.model;
  return {.batch = config.train.micro_batch_sequences,
          .length = config.data.sequence_length,
          .heads = model.num_attention_heads / config.parallel.tensor,
          .kv_heads = std::max<int64_t>(1, model.num_key_value_heads / config.parallel.tensor),
          .width = model.head_dim};
}

}  // namespace

absl::StatusOr<Device*> OpenDevice(const Config& config, Communicator& world) {
  // auto may have come to something else on another host.
  OT_RETURN_IF_ERROR(CheckSame(world, "train.device", NameOf(config.train.device)));
  switch (config.train.device) {
    case DeviceKind::kCpu:
      return CpuDevice();
    case DeviceKind::kEmulated:
      return EmulatedDevice();
    case DeviceKind::kCuda:
      break;
  }
  OT_ASSIGN_OR_RETURN(std::vector<std::string> gpus, Agree(world, CudaDevices()));
  OT_ASSIGN_OR_RETURN(const int ordinal, DeviceOfRank(world, {HostName(), std::move(gpus)},
                                                      /*shared=*/false));
  OT_ASSIGN_OR_RETURN(Device* const device, Agree(world, CudaDevice(ordinal)));
  if (config.train.attention == AttentionKind::kCudnn) {
    OT_ASSIGN_OR_RETURN(const std::string name,
                        Agree(world, StartCudnnAttention(device, {AttentionSizes(config)})));
    LogInfo(absl::StrCat("attention by ", name));
  }
  return device;
}

absl::StatusOr<std::unique_ptr<Communicator>> OnDevice(Communicator& world, Device* device) {
  std::unique_ptr<Communicator> own = world.Divide(0);
  if (world.size() == 1 || !device->own_memory()) return own;
  if (device->kind() == DeviceKind::kCuda) {
    absl::StatusOr<std::unique_ptr<Communicator>> nccl = NcclWorld(&own, device);
    if (nccl.ok()) return nccl;
    LogWarning(absl::StrCat("ranks exchange tensors through host memory, which is slow: ",
                            std::string(nccl.status().message())));
  }
  return Staged(std::move(own), device);
}

Device* PlannedDevice(DeviceKind kind, AttentionKind attention) {
  static Planned cuda(DeviceKind::kCuda), emulated(DeviceKind::kEmulated);
  static Planned cudnn(DeviceKind::kCuda, AttentionKind::kCudnn);
  if (kind == DeviceKind::kCpu) return CpuDevice();
  if (attention == AttentionKind::kCudnn && kind == DeviceKind::kCuda) return &cudnn;
  return kind == DeviceKind::kCuda ? &cuda : &emulated;
}

}  // namespace overtok

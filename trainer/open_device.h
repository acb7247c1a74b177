// The device that a configuration names, and what its ranks talk through.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "core/device.h"
#include "core/status.h"
#include "trainer/config/config.h"

namespace overtok {

// Collective; errors are the same on all ranks. cuda: one GPU for each rank of a host, as
// core/comm/device_place.h says; more ranks than GPUs, or what is missing, is an error. Ranks on
// the emulated device share it. With train.attention cudnn also starts that, for the sizes of
// training and evaluation.
absl::StatusOr<Device*> OpenDevice(const Config& config, Communicator& world);

// Collective. The same ranks as `world`, which it does not keep; takes messages whose tensors lie
// on `device`, which must outlive it. On GPUs NCCL (core/cuda/nccl.h), or where that is not to be
// had, with a warning that says why, staging through host memory (core/comm/staged.h). What the
// host computes with goes the same way as over `world`.
absl::StatusOr<std::unique_ptr<Communicator>> OnDevice(Communicator& world, Device* device);

// A device of that kind and attention that need not be there, for a dry Memory (core/memory.h);
// aborts when it is used.
Device* PlannedDevice(DeviceKind kind, AttentionKind attention = AttentionKind::kKernels);

}  // namespace overtok

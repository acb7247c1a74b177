// CheckedDevice, beside EmulatedDevice (device.cc).
#include "core/cuda/emulation/device.h"
#include "core/cuda/kernels.h"

namespace overtok {

Device* CheckedDevice() {
  static emulation::KernelDevice device(checked::CudaKernels());
  return &device;
}

}  // namespace overtok

// Products under the emulation: the CPU backend's, in place of cuBLASLt.
#include "core/cpu/kernels.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {

void Matmul(const Context& context, const MatmulArgs& args) {
  const emulation::DeviceAccess access;
  cpu::Matmul(context, args);
}

}  // namespace overtok::OT_BACKEND

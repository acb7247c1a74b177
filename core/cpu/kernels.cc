#include "core/cpu/kernels.h"

namespace overtok {

namespace cpu {

const Kernels& CpuKernels() {
  static const Kernels kernels = {OT_FOR_EACH_OP(OT_FILL_KERNEL)};
  return kernels;
}

}  // namespace cpu

Context CpuContext() { return Context(CpuDevice()); }

}  // namespace overtok

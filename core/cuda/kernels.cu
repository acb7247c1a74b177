#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {

const Kernels& CudaKernels() {
  static const Kernels kernels = {OT_FOR_EACH_OP(OT_FILL_KERNEL)};
  return kernels;
}

}  // namespace overtok::OT_BACKEND

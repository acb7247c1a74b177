#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {

const Kernels& CudaKernels() {
  static const Kernels kernels = {
      .fill = Fill,
      .cast = Cast,
      .add = Add,
      .matmul = Matmul,
  };
  return kernels;
}

}  // namespace overtok::OT_BACKEND

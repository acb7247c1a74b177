#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {
namespace {

Kernels& Table() {
  static Kernels kernels = {OT_FOR_EACH_OP(OT_FILL_KERNEL)};
  return kernels;
}

}  // namespace

const Kernels& CudaKernels() { return Table(); }

void ReplaceAttention(Kernel<AttentionForwardArgs> forward,
                      Kernel<AttentionBackwardArgs> backward) {
  Table().attention_forward = forward;
  Table().attention_backward = backward;
}

}  // namespace overtok::OT_BACKEND

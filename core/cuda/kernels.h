// The CUDA backend's kernels, a function for each op of core/ops/kernels.h, for each way they are
// compiled: by nvcc (namespace cuda), by the host's compiler (emulated), and the same with every
// access looked at (checked).
//
// They take what core/ops/*.h describes in f32 and bf16; f64, which exists for tests of the CPU
// backend, is an OT_CHECK. Matmul is cuBLASLt's (core/cuda/matmul.cc), or the CPU backend's under
// the emulation.
#pragma once

#include "core/cuda/kernel.h"
#include "core/ops/kernels.h"

namespace overtok::OT_BACKEND {

const Kernels& CudaKernels();
// Has the table name other functions for attention from now on (core/cuda/attention_cudnn.h).
void ReplaceAttention(Kernel<AttentionForwardArgs> forward, Kernel<AttentionBackwardArgs> backward);

OT_FOR_EACH_OP(OT_DECLARE_KERNEL)

}  // namespace overtok::OT_BACKEND

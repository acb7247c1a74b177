// The CPU backend's kernels, a function for each op of core/ops/kernels.h.
#pragma once

#include "core/ops/kernels.h"

namespace overtok::cpu {

const Kernels& CpuKernels();

OT_FOR_EACH_OP(OT_DECLARE_KERNEL)

}  // namespace overtok::cpu

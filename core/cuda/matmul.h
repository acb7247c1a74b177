// Products of the CUDA backend by cuBLASLt, which is opened at run time. This header needs no CUDA.
//
// Determinism: an algorithm is chosen once for each kind of product (sizes, types, transposes,
// alignment) and used from then on; split sums are only taken as partial results in f32 that a
// second pass adds up in a fixed order (neither in place nor in the output's type). Chosen by
// cuBLASLt's heuristic, which is a function of the product, the device and the library's version.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "core/ops/matmul.h"

namespace overtok::cuda {

// Workspace for partial results; ops of one stream share it. 32 MiB is what cuBLAS itself takes on
// sm_90.
inline constexpr int64_t kMatmulWorkspaceBytes = int64_t{32} << 20;

// Opens cuBLASLt and finds its functions. NotFound: as core/cuda/libraries.h.
absl::Status OpenCublasLt();
// The library's version, 130100 for 13.1.0; after OpenCublasLt.
int64_t CublasLtVersion();
// The same, and the library's state for the current device; before the first product. `workspace`:
// device memory, 256-byte aligned, kept.
absl::Status StartMatmul(void* workspace, int64_t bytes);

// core/ops/matmul.h in f32 (with args.tf32 by TF32 tensor cores, else never by them) and bf16, on
// the context's stream.
void Matmul(const Context& context, const MatmulArgs& args);

}  // namespace overtok::cuda

// The streams of NCCL's ranks on a GPU.
#pragma once

#include <memory>

#include "core/cuda/nccl_streams.h"
#include "core/status.h"

namespace overtok {

// Beside `compute`, a cudaStream_t of this thread's current device, which has to outlive it. An
// error: CUDA makes no stream.
absl::StatusOr<std::unique_ptr<NcclStreams>> CudaNcclStreams(void* compute);

}  // namespace overtok

// cuDNN's library, opened at run time. The functions that its frontend's headers call are defined
// here and go to that library: the program is linked with none of NVIDIA's libraries but the static
// CUDA runtime, which the headers then share with the rest of the backend.
#pragma once

#include <cudnn.h>

#include <string>

#include "absl/status/status.h"

namespace overtok::cuda {

// Opens the library and finds its functions. NotFound: as core/cuda/libraries.h.
absl::Status OpenCudnn();

// After OpenCudnn: "9.28.1 (/usr/lib/.../libcudnn.so.9)".
std::string CudnnName();
// "CUDNN_STATUS_...: " and what cuDNN says of its last error.
std::string CudnnReason(cudnnStatus_t status);

}  // namespace overtok::cuda

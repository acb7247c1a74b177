// What to do with the CUDA runtime's errors: an OT_CHECK that names what was being done, or a
// status.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace overtok::cuda {

inline std::string Described(cudaError_t error) {
  return absl::StrCat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

// Asynchronous errors show up at whatever call comes next, and stay. `during`: parts of what was
// being done, put together when it failed.
template <class... Parts>
void CheckCuda(cudaError_t error, const Parts&... during) {
  if (error == cudaSuccess) return;
  OT_CHECK(error == cudaSuccess)
      << "CUDA failed while " << absl::StrCat(during...) << ": " << Described(error)
      << "; an op before may be the cause: run again with CUDA_LAUNCH_BLOCKING=1 to see which";
}

inline absl::Status StatusOf(cudaError_t error, absl::string_view during) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("CUDA failed while ", during, ": ", Described(error)));
}

}  // namespace overtok::cuda

// core/cuda/device.h in programs that were built without the CUDA toolkit.
#include "core/check.h"
#include "core/cuda/device.h"

namespace overtok {

bool CudaIsThere() { return false; }

namespace {

absl::Status Absent() {
  return absl::UnavailableError(
      "this program was built without CUDA: build it where the CUDA toolkit (12.0 or later, nvcc "
      "and cuBLASLt) is found, or use another device");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> CudaDevices() { return Absent(); }

absl::StatusOr<Device*> CudaDevice(int /*ordinal*/) { return Absent(); }

namespace cuda {

void* AllocateManaged(int64_t /*bytes*/) {
  OT_CHECK(false) << "this program was built without CUDA";
  return nullptr;
}
void FreeManaged(void* /*data*/) {}

}  // namespace cuda
}  // namespace overtok

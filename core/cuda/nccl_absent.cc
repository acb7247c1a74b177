// NCCL in a build without CUDA's toolkit or without NCCL's header.
#include "core/cuda/nccl.h"

namespace overtok {

bool HaveNccl() { return false; }

absl::StatusOr<std::unique_ptr<Communicator>> NcclWorld(
    std::unique_ptr<Communicator>* /*bootstrap*/, Device* /*device*/) {
  return absl::UnimplementedError(
      "this program was built without NCCL: install the CUDA toolkit and nccl.h (libnccl-dev), "
      "configure again, and look for the line that names NCCL");
}

}  // namespace overtok

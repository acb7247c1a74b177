// core/cuda/attention_cudnn.h in programs that were built without cuDNN's headers.
#include "core/cuda/attention_cudnn.h"

namespace overtok {

absl::StatusOr<std::string> StartCudnnAttention(Device* /*device*/,
                                                const std::vector<PackedSizes>& /*sizes*/) {
  return absl::UnavailableError(
      "this program was built without cuDNN: build it where the CUDA toolkit, cudnn_frontend.h "
      "(1.32 or later, nvidia-cudnn-frontend from PyPI) and cudnn.h (9.25 or later, "
      "nvidia-cudnn-cu13 from PyPI) are found, or use train.attention=kernels");
}

}  // namespace overtok

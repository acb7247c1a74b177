// Attention of the CUDA backend by NVIDIA's cuDNN, behind the same entry points. This header needs
// neither CUDA nor cuDNN; programs that were built without cuDNN's headers (cmake/cudnn.cmake) get
// core/cuda/attention_cudnn_absent.cc, in which starting it is an error.
//
// Documents are sequences of a packed batch (core/cuda/packed_attention.h). Bits repeat: the plan
// for each size is the first that cuDNN's heuristic names, a function of sizes, device and version,
// and the gradients of queries are added up in a fixed order.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/cuda/packed_layout.h"
#include "core/device.h"

namespace overtok {

// Opens cuDNN, makes the plans for `sizes` with a scale of 1 / sqrt(width), and has the device's
// attention go through it from now on: in bf16, as TakesPacked (core/cuda/packed_attention.h) says;
// other calls stay the kernels'. Before memory is planned (AttentionScratch), once for a device.
// Plans for further sizes are made by their first call, which must not be recorded into a graph.
// Returns the library's version and file, for people. Errors: name what is missing (cuDNN in this
// build, the library, version 9.25, compute capability 9.0), or what cuDNN says of the sizes.
absl::StatusOr<std::string> StartCudnnAttention(Device* device,
                                                const std::vector<PackedSizes>& sizes);

}  // namespace overtok

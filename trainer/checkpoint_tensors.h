// The HDF5 files of a checkpoint: named tensors, each with an xxh3 of its bytes, because HDF5
// has no checksum for contiguous data.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "core/tensor.h"

namespace overtok {

struct NamedTensor {
  std::string name;
  Tensor tensor;  // on the host
};

// Creates `path`: dataset /tensors/<name> per tensor. `kind` (model, optimizer) and `step` are
// stored and compared on reading. Returns one hash of all names and bytes.
absl::StatusOr<uint64_t> WriteTensors(absl::string_view path, absl::string_view kind, int64_t step,
                                      const std::vector<NamedTensor>& tensors);

// Fills `tensors` from `path`. Every one must be there with its shape and an unchanged checksum,
// and no other; the error names the first that differs. Returns the same hash.
absl::StatusOr<uint64_t> ReadTensors(absl::string_view path, absl::string_view kind, int64_t step,
                                     const std::vector<NamedTensor>& tensors);

// The same for some of the file's tensors; the others stay unread.
absl::Status ReadSomeTensors(absl::string_view path, absl::string_view kind, int64_t step,
                             const std::vector<NamedTensor>& tensors);

}  // namespace overtok

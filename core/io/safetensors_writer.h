// Writing safetensors files: names sorted, data of every tensor aligned to its element size (the
// header is padded to 8 bytes, wider types come first), `__metadata__` {"format": "pt"}, which many
// readers insist on. Files appear whole or not at all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/io/stored_type.h"
#include "core/status.h"
#include "core/tensor.h"

namespace overtok {

// A tensor to write: f32 values, and the type that they are stored as.
struct TensorToStore {
  std::string name;
  StoredType type = StoredType::kF32;  // F32, F64 (exact), F16, BF16 (rounded to nearest even)
  Tensor values;                       // f32, row-major, of the shape that is written
};

// One file of all tensors; no two of one name. Beside the tensors themselves nothing of their size
// is held in memory.
absl::Status WriteSafetensors(absl::string_view path, std::vector<TensorToStore> tensors);

// model.safetensors in `directory`, which exists; or, when the data are more than `bytes_of_file`,
// model-00001-of-0000n.safetensors and so on, filled in the order given, and the index, which is
// written last. A tensor is never cut.
absl::Status WriteSafetensorsFiles(absl::string_view directory,
                                   const std::vector<TensorToStore>& tensors,
                                   int64_t bytes_of_file);

}  // namespace overtok

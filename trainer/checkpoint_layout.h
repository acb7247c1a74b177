// What lies where in a checkpoint: tensors.json (docs/formats/checkpoint.md). Every rank describes
// the pieces in its own file; all of them together are every element of every logical tensor once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/sharding.h"
#include "core/status.h"

namespace overtok {

inline constexpr int kCheckpointVersion = 2;

enum class CheckpointKind : uint8_t { kModel, kOptimizer };
const char* NameOf(CheckpointKind kind);  // "model", "optimizer"

// A contiguous stretch of a rank's file.
struct StoredPiece {
  CheckpointKind kind = CheckpointKind::kModel;
  std::string name;  // of the logical tensor
  DType dtype = DType::kF32;
  Region region;
  int64_t offset = 0;  // of its first byte in the file
  uint64_t xxh3 = 0;   // of its bytes
  uint64_t sum = 0;    // PositionHash
  int64_t bytes() const { return region.count * SizeOf(dtype); }
};

struct StoredFile {
  std::string name;  // in the checkpoint's directory
  int64_t bytes = 0;
  std::vector<StoredPiece> pieces;
};

// A logical tensor and where its pieces are.
struct StoredTensor {
  struct Place {
    size_t file, piece;
  };
  CheckpointKind kind = CheckpointKind::kModel;
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<Place> pieces;
};

struct CheckpointLayout {
  int64_t step = 0;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;  // in the order of their first pieces
  // The sum of TensorHash over the tensors of a kind.
  uint64_t Hash(CheckpointKind kind) const;
};

// One file of a layout as text, and back.
std::string ToText(const StoredFile& file);

// tensors.json from the texts of all files.
std::string LayoutText(int64_t step, const std::vector<std::string>& files);

// Errors, all naming `path`: what is no such file; another version; pieces of one tensor that
// disagree in dtype, shape or division, or that do not make up the tensor exactly.
absl::StatusOr<CheckpointLayout> ParseLayout(absl::string_view path, const std::string& text);

// For a file of another version than this program's: what to do.
absl::Status OtherVersion(absl::string_view path, int64_t version);

}  // namespace overtok

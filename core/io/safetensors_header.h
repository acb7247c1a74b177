// The header of a safetensors file: an 8-byte little-endian length, then so many bytes of JSON that
// name each tensor's type, shape and place in the data that follow. Everything is checked before a
// byte of the data is used: a file that passes can be read without looking again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/io/stored_type.h"
#include "core/status.h"

namespace overtok {

// One tensor of a file. Row-major.
struct SafetensorsEntry {
  std::string name;
  StoredType type = StoredType::kF32;
  std::vector<int64_t> shape;  // of any rank; [] is one element
  int64_t elements = 0;
  int64_t begin = 0, end = 0;  // bytes of the file, header included
  int file = 0;                // of several files: which one (core/io/safetensors.h)
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;  // "__metadata__"; empty where there is none
  std::vector<SafetensorsEntry> tensors;        // ascending names
};

// The longest header that is read, as in the format's own library.
inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;

// Reads the header of a file whose first `file_size` bytes are at `file`. Errors begin with `path`
// and name the tensor: a length beyond the file or kMaxSafetensorsHeader; text that is no JSON
// object; two tensors of one name; a type that is not known; sizes that overflow; a tensor whose
// bytes do not fit its shape, lie outside the data, or overlap another's; bytes that belong to no
// tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view path, const char* file,
                                                         int64_t file_size);

// "[3, 4]"
std::string FormatShape(const std::vector<int64_t>& shape);

}  // namespace overtok

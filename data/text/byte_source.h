// The bytes of a file, decompressed on the way: .gz (any number of members), .zst (any number of
// frames), or as they are. A file that ends inside a member or frame is an error, never a short
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class ByteSource {
 public:
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(absl::string_view path);
  virtual ~ByteSource() = default;
  // Up to `capacity` bytes into `buffer`; 0 at the end of the file only.
  virtual absl::StatusOr<int64_t> Read(char* buffer, int64_t capacity) = 0;
  virtual int64_t file_bytes_read() const = 0;  // of the file itself, for progress
};

// `path` without .gz or .zst.
absl::string_view StripCompression(absl::string_view path);

}  // namespace overtok

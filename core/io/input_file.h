// A file that is read at given places: plain reads into the caller's memory, nothing mapped (an
// error of the disk is a status and not a signal), no position, so that threads may share it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class InputFile {
 public:
  static absl::StatusOr<InputFile> Open(absl::string_view path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();
  const std::string& path() const { return path_; }

  // Bytes [offset, offset + bytes) into `to`. A file that ends before is a DataLoss error.
  absl::Status Read(int64_t offset, void* to, int64_t bytes) const;

 private:
  InputFile(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace overtok

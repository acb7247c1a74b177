// A file mapped for reading. Pages come in when they are touched, and only those: the kernel's own
// read-ahead is off, so that a rank that needs some rows does not read its neighbours'. Do not
// shorten a file while it is mapped: touching what was cut off ends the process.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(absl::string_view path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  const std::string& path() const { return path_; }
  const char* data() const { return data_; }  // null when the file is empty
  int64_t size() const { return size_; }

  // Bytes [begin, end) will be read soon: the kernel starts to read them now. Hints; errors do not
  // matter.
  void WillNeed(int64_t begin, int64_t end) const;
  // Bytes [begin, end) are done with: they leave this process's resident memory.
  void Done(int64_t begin, int64_t end) const;

 private:
  MappedFile() = default;
  std::string path_;
  const char* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace overtok

#include "core/io/input_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/io/files.h"

namespace overtok {
namespace {

std::string Reason() { return std::strerror(errno); }

}  // namespace

absl::StatusOr<InputFile> InputFile::Open(absl::string_view path) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
  std::string name(path);
  const int descriptor = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    return absl::NotFoundError(absl::StrCat("cannot open ", path, ": ", Reason()));
  }
  return InputFile(std::move(name), descriptor);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status InputFile::Read(int64_t offset, void* to, int64_t bytes) const {
  OT_CHECK(offset >= 0 && bytes >= 0);
  char* at = static_cast<char*>(to);
  while (bytes > 0) {
    const size_t most = static_cast<size_t>(std::min(bytes, int64_t{1} << 30));
    const ssize_t n = pread(descriptor_, at, most, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::UnavailableError(absl::StrCat("cannot read ", path_, ": ", Reason()));
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path_, " ends at byte ", offset, ", ", bytes,
                                              " more were expected: it was cut off"));
    }
    at += n;
    offset += n;
    bytes -= n;
  }
  return absl::OkStatus();
}

}  // namespace overtok

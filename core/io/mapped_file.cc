#include "core/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/io/files.h"

namespace overtok {
namespace {

absl::Status Failed(absl::string_view what, absl::string_view path) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::string(std::strerror(errno)));
  return errno == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
}

int64_t PageSize() {
  static const int64_t size = sysconf(_SC_PAGESIZE);
  return size;
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(absl::string_view path) {
  MappedFile file;
  file.path_ = std::string(path);
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
  const int fd = open(file.path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return Failed("open", path);
  struct stat info;
  absl::Status status;
  if (fstat(fd, &info) != 0) {
    status = Failed("examine", path);
  } else if (!S_ISREG(info.st_mode)) {
    status = absl::InvalidArgumentError(absl::StrCat(path, ": is not a file"));
  } else if (info.st_size > 0) {
    void* base =
        mmap(nullptr, static_cast<size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, off_t{0});
    if (base == MAP_FAILED) {
      status = Failed("map", path);
    } else {
      madvise(base, static_cast<size_t>(info.st_size), MADV_RANDOM);
      file.data_ = static_cast<const char*>(base);
      file.size_ = info.st_size;
    }
  }
  close(fd);
  OT_RETURN_IF_ERROR(status);
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), static_cast<size_t>(size_));
}

void MappedFile::WillNeed(int64_t begin, int64_t end) const {
  OT_CHECK(0 <= begin && begin <= end && end <= size_);
  if (begin == end) return;
  const int64_t from = begin / PageSize() * PageSize();
  madvise(const_cast<char*>(data_) + from, static_cast<size_t>(end - from), MADV_WILLNEED);
}

void MappedFile::Done(int64_t begin, int64_t end) const {
  OT_CHECK(0 <= begin && begin <= end && end <= size_);
  if (begin == end) return;
  const int64_t from = begin / PageSize() * PageSize();
  madvise(const_cast<char*>(data_) + from, static_cast<size_t>(end - from), MADV_DONTNEED);
}

}  // namespace overtok

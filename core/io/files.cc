// File operations that survive a crash: see files.h. Plain POSIX calls, because std::filesystem
// neither syncs nor says which of several system calls failed.
#include "core/io/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>

namespace overtok {
namespace {

std::mutex hook_mutex;
FileFaultHook& Hook() {
  static FileFaultHook* hook = new FileFaultHook();  // never destroyed: used until exit
  return *hook;
}

absl::Status ErrnoStatus(int error, absl::string_view what, absl::string_view path) {
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::string(std::strerror(error)));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(message);
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(message);
    case EEXIST:
      return absl::AlreadyExistsError(message);
    default:
      return absl::UnavailableError(message);
  }
}

// Closes at the end of the scope; Release() for closing by hand where the result matters.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

std::string ParentOf(absl::string_view path) {
  const std::string text(path);
  const size_t slash = text.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : text.substr(0, slash);
}

absl::Status WriteAll(int fd, absl::string_view contents, absl::string_view path) {
  const char* data = contents.data();
  size_t left = contents.size();
  while (left > 0) {
    const ssize_t n = write(fd, data, std::min<size_t>(left, size_t{1} << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write", path);
    data += n;
    left -= static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status Fsync(const std::string& path, int flags) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("fsync", path));
  const Descriptor fd(open(path.c_str(), flags | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "open", path);
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync", path);
  return absl::OkStatus();
}

absl::Status WriteTemporary(const std::string& temporary, absl::string_view contents) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", temporary));
  Descriptor fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (fd.get() < 0) return ErrnoStatus(errno, "create", temporary);
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", temporary));
  OT_RETURN_IF_ERROR(WriteAll(fd.get(), contents, temporary));
  OT_RETURN_IF_ERROR(RunFileFaultHook("fsync", temporary));
  if (fsync(fd.get()) != 0) return ErrnoStatus(errno, "fsync", temporary);
  // Some file systems report a failed write only here.
  if (close(fd.Release()) != 0) return ErrnoStatus(errno, "close", temporary);
  return absl::OkStatus();
}

absl::Status RemoveRecursively(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, "examine", path);
  }
  if (S_ISDIR(info.st_mode)) {  // a link to a directory is removed, not followed
    OT_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(path));
    for (const std::string& name : names) {
      OT_RETURN_IF_ERROR(RemoveRecursively(JoinPath(path, name)));
    }
    if (rmdir(path.c_str()) != 0) return ErrnoStatus(errno, "remove", path);
    return absl::OkStatus();
  }
  if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, "remove", path);
  return absl::OkStatus();
}

}  // namespace

void SetFileFaultHook(FileFaultHook hook) {
  const std::lock_guard<std::mutex> lock(hook_mutex);
  Hook() = std::move(hook);
}

absl::Status RunFileFaultHook(absl::string_view operation, absl::string_view path) {
  FileFaultHook hook;
  {
    const std::lock_guard<std::mutex> lock(hook_mutex);
    if (!Hook()) return absl::OkStatus();
    hook = Hook();
  }
  return hook(operation, path);
}

absl::StatusOr<std::string> ReadFile(absl::string_view path, int64_t limit) {
  const std::string name(path);
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", name));
  const Descriptor fd(open(name.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) return ErrnoStatus(errno, "open", path);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, "examine", path);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory, not a file"));
  }
  std::string contents;
  if (S_ISREG(info.st_mode)) contents.reserve(static_cast<size_t>(std::min(info.st_size, limit)));
  // Reads to the end rather than to st_size: pipes and /proc files have no size.
  char buffer[1 << 16];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "read", path);
    if (n == 0) return contents;
    if (static_cast<int64_t>(contents.size()) + n > limit) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is larger than ", limit, " bytes, the most that is expected of such a file"));
    }
    contents.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status WriteFileAtomically(absl::string_view path, absl::string_view contents) {
  const std::string temporary = absl::StrCat(path, ".tmp-", getpid());
  absl::Status status = WriteTemporary(temporary, contents);
  if (status.ok()) status = RenamePath(temporary, path);
  if (!status.ok()) unlink(temporary.c_str());
  return status;
}

absl::Status FsyncFile(absl::string_view path) { return Fsync(std::string(path), O_RDONLY); }

absl::Status FsyncDirectory(absl::string_view path) {
  return Fsync(std::string(path), O_RDONLY | O_DIRECTORY);
}

absl::Status RenamePath(absl::string_view from, absl::string_view to) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("rename", to));
  if (rename(std::string(from).c_str(), std::string(to).c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("rename ", from, " to"), to);
  }
  return FsyncDirectory(ParentOf(to));
}

absl::Status CreateDirectories(absl::string_view path) {
  const std::string text(path);
  if (text.empty() || IsDirectory(text)) return absl::OkStatus();
  const std::string parent = ParentOf(text);
  if (parent != text && parent != ".") OT_RETURN_IF_ERROR(CreateDirectories(parent));
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", text));
  if (mkdir(text.c_str(), 0777) != 0 && !(errno == EEXIST && IsDirectory(text))) {
    return ErrnoStatus(errno, "create the directory", text);
  }
  return absl::OkStatus();
}

absl::Status RemoveTree(absl::string_view path) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("remove", path));
  return RemoveRecursively(std::string(path));
}

bool PathExists(absl::string_view path) {
  struct stat info;
  return stat(std::string(path).c_str(), &info) == 0;
}

bool IsDirectory(absl::string_view path) {
  struct stat info;
  return stat(std::string(path).c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::StatusOr<int64_t> FileSize(absl::string_view path) {
  struct stat info;
  if (stat(std::string(path).c_str(), &info) != 0) return ErrnoStatus(errno, "examine", path);
  return static_cast<int64_t>(info.st_size);
}

std::string JoinPath(absl::string_view directory, absl::string_view name) {
  if (directory.empty() || (!name.empty() && name.front() == '/')) return std::string(name);
  return absl::StrCat(directory, directory.back() == '/' ? "" : "/", name);
}

absl::StatusOr<std::vector<std::string>> ListDirectory(absl::string_view path) {
  DIR* directory = opendir(std::string(path).c_str());
  if (directory == nullptr) return ErrnoStatus(errno, "open the directory", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = readdir(directory)) {
    const std::string name(entry->d_name);
    if (name != "." && name != "..") names.push_back(name);
    errno = 0;
  }
  const int error = errno;
  closedir(directory);
  if (error != 0) return ErrnoStatus(error, "list", path);
  std::sort(names.begin(), names.end(),
            [](const std::string& a, const std::string& b) { return NaturalLess(a, b); });
  return names;
}

absl::Status CheckFreeSpace(absl::string_view path, int64_t needed) {
  std::string existing(path.empty() ? absl::string_view(".") : path);
  while (!PathExists(existing) && existing != "/" && existing != ".") existing = ParentOf(existing);
  struct statvfs info;
  if (statvfs(existing.c_str(), &info) != 0) {
    return ErrnoStatus(errno, "ask for the free space of", existing);
  }
  const uint64_t free_bytes =
      static_cast<uint64_t>(info.f_bavail) * static_cast<uint64_t>(info.f_frsize);
  if (needed > 0 && free_bytes < static_cast<uint64_t>(needed)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("not enough disk space for ", path, ": ", needed, " bytes are needed, ",
                     free_bytes, " are free; free some, or write to another file system"));
  }
  return absl::OkStatus();
}

}  // namespace overtok

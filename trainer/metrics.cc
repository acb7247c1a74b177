#include "trainer/metrics.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "core/io/files.h"

namespace overtok {
namespace {

std::string Quoted(absl::string_view text) {
  // Invalid UTF-8 (a path, a message of the system) is replaced instead of thrown about.
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Number(double value) {
  if (std::isnan(value)) return "\"NaN\"";
  if (std::isinf(value)) return value > 0 ? "\"Infinity\"" : "\"-Infinity\"";
  return nlohmann::json(value).dump();
}

absl::Status SystemError(absl::string_view what, absl::string_view path) {
  const int error = errno;
  const std::string message =
      absl::StrCat("cannot ", what, " ", path, ": ", std::string(std::strerror(error)));
  if (error == ENOSPC || error == EDQUOT) return absl::ResourceExhaustedError(message);
  return absl::UnavailableError(message);
}

}  // namespace

MetricsLine::MetricsLine(int64_t step, absl::string_view kind) : step_(step), kind_(kind) {}

MetricsLine& MetricsLine::Add(absl::string_view name, double value) {
  absl::StrAppend(&rest_, ",", Quoted(name), ":", Number(value));
  return *this;
}

MetricsLine& MetricsLine::Add(absl::string_view name, int64_t value) {
  absl::StrAppend(&rest_, ",", Quoted(name), ":", value);
  return *this;
}

MetricsLine& MetricsLine::Add(absl::string_view name, absl::string_view text) {
  absl::StrAppend(&rest_, ",", Quoted(name), ":", Quoted(text));
  return *this;
}

MetricsLine& MetricsLine::AddFlag(absl::string_view name, bool value) {
  absl::StrAppend(&rest_, ",", Quoted(name), ":", value ? "true" : "false");
  return *this;
}

MetricsLine& MetricsLine::AddHash(absl::string_view name, uint64_t hash) {
  return Add(name, absl::string_view(absl::StrFormat("%016x", hash)));
}

std::string MetricsLine::ToJson(double unix_seconds) const {
  return absl::StrCat("{\"step\":", step_, ",\"time\":", absl::StrFormat("%.3f", unix_seconds),
                      ",\"kind\":", Quoted(kind_), rest_, "}");
}

absl::StatusOr<std::unique_ptr<MetricsFile>> MetricsFile::Open(absl::string_view path,
                                                               int64_t keep_bytes) {
  const std::string name(path);
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", name));
  const int fd = open(name.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd < 0) return SystemError("open", path);
  std::unique_ptr<MetricsFile> file(new MetricsFile(name, fd, keep_bytes));
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError("examine", path);
  if (info.st_size < keep_bytes) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", info.st_size, " bytes, but the checkpoint was written when it had ",
        keep_bytes, "; put the run's own file back, or start over in another directory"));
  }
  if (ftruncate(fd, keep_bytes) != 0) return SystemError("cut back", path);
  return file;
}

MetricsFile::~MetricsFile() { close(fd_); }

absl::Status MetricsFile::Write(const MetricsLine& line) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
  const std::string text = absl::StrCat(line.ToJson(UnixSeconds()), "\n");
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd_, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      absl::Status status = SystemError("write to", path_);
      if (ftruncate(fd_, bytes_) != 0) {
        return absl::Status(
            status.code(),
            absl::StrCat(status.message(), "; a part of a line may be left at byte ", bytes_));
      }
      return status;
    }
    done += static_cast<size_t>(n);
  }
  bytes_ += static_cast<int64_t>(text.size());
  return absl::OkStatus();
}

absl::Status MetricsFile::Sync() {
  OT_RETURN_IF_ERROR(RunFileFaultHook("fsync", path_));
  return fsync(fd_) == 0 ? absl::OkStatus() : SystemError("fsync", path_);
}

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace overtok

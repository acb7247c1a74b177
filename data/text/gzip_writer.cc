#include "data/text/gzip_writer.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/check.h"
#include "core/io/files.h"

namespace overtok {
namespace {

class GzipWriterImpl final : public GzipWriter {
 public:
  GzipWriterImpl(std::string path, gzFile file) : path_(std::move(path)), file_(file) {}
  ~GzipWriterImpl() override {
    if (file_ != nullptr) gzclose(file_);
  }
  absl::Status Write(absl::string_view bytes) override {
    OT_CHECK(file_ != nullptr);
    OT_RETURN_IF_ERROR(RunFileFaultHook("write", path_));
    while (!bytes.empty()) {
      const size_t n = std::min<size_t>(bytes.size(), size_t{1} << 30);
      if (gzwrite(file_, bytes.data(), static_cast<unsigned>(n)) != static_cast<int>(n)) {
        return Failed();
      }
      bytes.remove_prefix(n);
    }
    return absl::OkStatus();
  }
  absl::Status Close() override {
    OT_CHECK(file_ != nullptr);
    const int code = gzclose(file_);
    file_ = nullptr;
    if (code != Z_OK) return Failed();
    return FsyncFile(path_);
  }

 private:
  absl::Status Failed() const {
    const std::string message =
        absl::StrCat("cannot write ", path_, ": ", std::string(std::strerror(errno)));
    return errno == ENOSPC ? absl::ResourceExhaustedError(message)
                           : absl::UnavailableError(message);
  }
  const std::string path_;
  gzFile file_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GzipWriter>> GzipWriter::Create(absl::string_view path) {
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
  const int fd = open(std::string(path).c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot create ", path, ": ", std::string(std::strerror(errno))));
  }
  // gzdopen writes neither a name nor a time.
  gzFile file = gzdopen(fd, "wb6");
  if (file == nullptr) {
    close(fd);
    return absl::ResourceExhaustedError(absl::StrCat("no memory to compress ", path));
  }
  return std::unique_ptr<GzipWriter>(new GzipWriterImpl(std::string(path), file));
}

}  // namespace overtok

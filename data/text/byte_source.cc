#include "data/text/byte_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "core/io/files.h"

namespace overtok {
namespace {

constexpr int kWindowLog = 31;  // the most that the zstd program offers (--long=31)
constexpr size_t kInputBuffer = size_t{1} << 18;

class PlainSource final : public ByteSource {
 public:
  PlainSource(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PlainSource() override { close(fd_); }
  absl::StatusOr<int64_t> Read(char* buffer, int64_t capacity) override {
    while (true) {
      const ssize_t n = read(fd_, buffer, static_cast<size_t>(capacity));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) {
        return absl::UnavailableError(
            absl::StrCat("cannot read ", path_, ": ", std::string(std::strerror(errno))));
      }
      read_ += n;
      return static_cast<int64_t>(n);
    }
  }
  int64_t file_bytes_read() const override { return read_; }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  const int fd_;
  int64_t read_ = 0;
};

absl::Status CutOff(const std::string& path) {
  return absl::DataLossError(
      absl::StrCat(path, " is cut off: it ends inside its compressed data; fetch it again"));
}

absl::Status Damaged(const std::string& path, absl::string_view reason) {
  return absl::DataLossError(absl::StrCat(path, " cannot be decompressed: ", reason));
}

class GzipSource final : public ByteSource {
 public:
  explicit GzipSource(std::unique_ptr<PlainSource> file)
      : file_(std::move(file)), input_(kInputBuffer) {}
  ~GzipSource() override {
    if (started_) inflateEnd(&stream_);
  }
  absl::StatusOr<int64_t> Read(char* buffer, int64_t capacity) override {
    if (!started_) {
      if (inflateInit2(&stream_, 15 + 16) != Z_OK) return Damaged(file_->path(), "no memory");
      started_ = true;
    }
    stream_.next_out = reinterpret_cast<Bytef*>(buffer);
    stream_.avail_out = static_cast<uInt>(std::min<int64_t>(capacity, 1 << 30));
    const uInt room = stream_.avail_out;
    while (stream_.avail_out == room) {
      if (stream_.avail_in == 0) {
        OT_ASSIGN_OR_RETURN(const int64_t n,
                            file_->Read(input_.data(), static_cast<int64_t>(input_.size())));
        if (n == 0) {
          if (inside_member_) return CutOff(file_->path());
          return 0;
        }
        stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
        stream_.avail_in = static_cast<uInt>(n);
      }
      inside_member_ = true;
      const int code = inflate(&stream_, Z_NO_FLUSH);
      if (code == Z_STREAM_END) {  // another member may follow
        inside_member_ = false;
        inflateReset(&stream_);
      } else if (code != Z_OK && code != Z_BUF_ERROR) {
        return Damaged(file_->path(), stream_.msg != nullptr ? stream_.msg : "damaged gzip data");
      }
    }
    return static_cast<int64_t>(room - stream_.avail_out);
  }
  int64_t file_bytes_read() const override { return file_->file_bytes_read(); }

 private:
  const std::unique_ptr<PlainSource> file_;
  std::vector<char> input_;
  z_stream stream_{};
  bool started_ = false;
  // An empty file is not a gzip file: the first member must come.
  bool inside_member_ = true;
};

class ZstdSource final : public ByteSource {
 public:
  explicit ZstdSource(std::unique_ptr<PlainSource> file)
      : file_(std::move(file)), input_(kInputBuffer), context_(ZSTD_createDCtx(), ZSTD_freeDCtx) {}
  absl::StatusOr<int64_t> Read(char* buffer, int64_t capacity) override {
    if (context_ == nullptr) return Damaged(file_->path(), "no memory");
    // Files made with --long need a larger window than the default allows.
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kWindowLog);
    ZSTD_outBuffer output{buffer, static_cast<size_t>(capacity), 0};
    while (output.pos == 0) {
      if (in_.pos == in_.size && !flushing_) {
        OT_ASSIGN_OR_RETURN(const int64_t n,
                            file_->Read(input_.data(), static_cast<int64_t>(input_.size())));
        if (n == 0) {
          if (inside_frame_) return CutOff(file_->path());
          return 0;
        }
        in_ = {input_.data(), static_cast<size_t>(n), 0};
      }
      const size_t code = ZSTD_decompressStream(context_.get(), &output, &in_);
      if (ZSTD_isError(code) != 0) return Damaged(file_->path(), ZSTD_getErrorName(code));
      inside_frame_ = code != 0;
      // A full output buffer: the decoder may hold more without needing input.
      flushing_ = output.pos == output.size && code != 0;
    }
    return static_cast<int64_t>(output.pos);
  }
  int64_t file_bytes_read() const override { return file_->file_bytes_read(); }

 private:
  const std::unique_ptr<PlainSource> file_;
  std::vector<char> input_;
  std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context_;
  ZSTD_inBuffer in_{nullptr, 0, 0};
  bool inside_frame_ = true, flushing_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteSource>> ByteSource::Open(absl::string_view path) {
  const std::string name(path);
  if (IsDirectory(name)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory, expected a file"));
  }
  const int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message =
        absl::StrCat("cannot open ", path, ": ", std::string(std::strerror(errno)));
    return errno == ENOENT ? absl::NotFoundError(message) : absl::UnavailableError(message);
  }
  auto plain = std::make_unique<PlainSource>(name, fd);
  if (absl::EndsWith(path, ".gz")) {
    return std::unique_ptr<ByteSource>(new GzipSource(std::move(plain)));
  }
  if (absl::EndsWith(path, ".zst")) {
    return std::unique_ptr<ByteSource>(new ZstdSource(std::move(plain)));
  }
  return std::unique_ptr<ByteSource>(std::move(plain));
}

absl::string_view StripCompression(absl::string_view path) {
  for (const absl::string_view ending : {absl::string_view(".gz"), absl::string_view(".zst")}) {
    if (absl::EndsWith(path, ending)) path.remove_suffix(ending.size());
  }
  return path;
}

}  // namespace overtok

#include "data/text/line_reader.h"

#include <cstring>

namespace overtok {
namespace {

constexpr size_t kFirstBuffer = size_t{1} << 18;
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

absl::StatusOr<LineReader> LineReader::Open(absl::string_view path, int64_t longest_line) {
  LineReader reader;
  reader.path_ = std::string(path);
  reader.longest_ = longest_line;
  OT_ASSIGN_OR_RETURN(reader.source_, ByteSource::Open(path));
  reader.buffer_.resize(kFirstBuffer);
  return reader;
}

absl::StatusOr<bool> LineReader::Fill() {
  if (begin_ > 0) {  // only between lines, so a byte moves at most once per buffer
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (end_ == buffer_.size()) {
    if (static_cast<int64_t>(end_) > longest_) {
      return absl::InvalidArgumentError(absl::StrCat(path_, ":", line_ + 1, ": longer than ",
                                                     longest_, " bytes, the most that is read"));
    }
    buffer_.resize(2 * buffer_.size());
  }
  OT_ASSIGN_OR_RETURN(const int64_t n, source_->Read(buffer_.data() + end_,
                                                     static_cast<int64_t>(buffer_.size() - end_)));
  end_ += static_cast<size_t>(n);
  if (!started_ && n > 0) {
    // The mark is three bytes, and a read may give fewer.
    if (end_ < kByteOrderMark.size()) {
      OT_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) started_ = true;
      return true;
    }
    started_ = true;
    if (std::memcmp(buffer_.data(), kByteOrderMark.data(), kByteOrderMark.size()) == 0) {
      had_byte_order_mark_ = true;
      begin_ = kByteOrderMark.size();
    }
  }
  return n > 0;
}

absl::StatusOr<bool> LineReader::Next(absl::string_view* line) {
  size_t searched = 0;  // bytes behind begin_ that hold no line end
  while (true) {
    const char* start = buffer_.data() + begin_;
    const void* found = std::memchr(start + searched, '\n', end_ - begin_ - searched);
    size_t length = 0, taken = 0;
    if (found != nullptr) {
      length = static_cast<size_t>(static_cast<const char*>(found) - start);
      taken = length + 1;
    } else {
      searched = end_ - begin_;
      const bool fresh = !started_;
      OT_ASSIGN_OR_RETURN(const bool more, Fill());
      if (fresh) searched = 0;  // a byte order mark may have gone
      if (more) continue;
      if (begin_ == end_) return false;
      start = buffer_.data() + begin_;
      length = taken = end_ - begin_;  // a last line without an end
    }
    ++line_;
    begin_ += taken;
    if (length > 0 && start[length - 1] == '\r') --length;
    *line = absl::string_view(start, length);
    return true;
  }
}

absl::StatusOr<absl::string_view> LineReader::Rest() {
  while (true) {
    OT_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) break;
  }
  const absl::string_view rest(buffer_.data() + begin_, end_ - begin_);
  begin_ = end_;
  return rest;
}

}  // namespace overtok

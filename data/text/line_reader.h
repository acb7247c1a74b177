// Lines of a (compressed) file, of any length, in one growing buffer. A byte order mark at the
// start of the file is skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/text/byte_source.h"

namespace overtok {

class LineReader {
 public:
  // Lines longer than `longest_line` bytes are an error that names the line.
  static absl::StatusOr<LineReader> Open(absl::string_view path,
                                         int64_t longest_line = int64_t{1} << 30);
  // The next line without its end (\n or \r\n), valid until the next call; false at the end of the
  // file.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // Everything that is left, as one piece.
  absl::StatusOr<absl::string_view> Rest();
  int64_t line() const { return line_; }  // number of the line that was returned last, from 1
  bool had_byte_order_mark() const { return had_byte_order_mark_; }
  int64_t file_bytes_read() const { return source_->file_bytes_read(); }

 private:
  LineReader() = default;
  absl::StatusOr<bool> Fill();  // more bytes behind `end_`; false at the end of the file

  std::string path_;
  std::unique_ptr<ByteSource> source_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;  // unread bytes of the buffer
  int64_t line_ = 0, longest_ = 0;
  bool started_ = false, had_byte_order_mark_ = false;
};

}  // namespace overtok

// Documents out of text files, one after another and in order: a .txt file is one document, a line
// of a .jsonl file is one document; both also as .gz or .zst. For work that wants the text alone;
// encode_files.h is the way to ids on all cores.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "data/text/json_line.h"
#include "data/text/line_reader.h"

namespace overtok {

class DocumentFiles {
 public:
  // Checks that every file exists and is called *.jsonl or *.txt (.gz, .zst). `field` is the key of
  // the text in .jsonl lines. With `block_bytes` above 0, a .txt file is handed out in blocks of at
  // least that size that end with a line.
  static absl::StatusOr<std::unique_ptr<DocumentFiles>> Open(std::vector<std::string> paths,
                                                             absl::string_view field,
                                                             size_t block_bytes);

  // Stores the next document in `*document` and returns true; false at the end. A bad line is
  // skipped and counted; more than `kMostBadLines` are an error.
  absl::StatusOr<bool> Next(std::string* document);

  static constexpr int64_t kMostBadLines = 100;
  int64_t bad_lines() const { return bad_lines_; }
  const std::string& first_bad_line() const { return first_bad_line_; }  // "file:line: reason"
  int64_t file_bytes() const { return file_bytes_; }                     // of all files, as stored
  int64_t file_bytes_read() const;                                       // so far, for progress

 private:
  DocumentFiles() = default;
  absl::StatusOr<bool> NextBlock(std::string* document);
  absl::StatusOr<bool> NextLine(std::string* document);

  std::vector<std::string> paths_;
  std::string field_;
  size_t block_bytes_ = 0;
  size_t next_ = 0;                   // the file after the open one
  std::optional<LineReader> reader_;  // of the open file
  bool is_text_ = false;
  absl::string_view rest_;  // what is left of an open .txt file, inside the reader
  JsonLineParser parser_;
  int64_t bad_lines_ = 0, file_bytes_ = 0, finished_bytes_ = 0;
  std::string first_bad_line_;
};

}  // namespace overtok

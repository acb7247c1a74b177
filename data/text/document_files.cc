#include "data/text/document_files.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "core/io/files.h"
#include "data/text/encode_files.h"
#include "data/tokenizer/utf8.h"

namespace overtok {

absl::StatusOr<std::unique_ptr<DocumentFiles>> DocumentFiles::Open(std::vector<std::string> paths,
                                                                   absl::string_view field,
                                                                   size_t block_bytes) {
  OT_RETURN_IF_ERROR(CheckInputNames(paths, /*ids=*/false));
  std::unique_ptr<DocumentFiles> files(new DocumentFiles());
  for (const std::string& path : paths) {
    OT_ASSIGN_OR_RETURN(const int64_t size, FileSize(path));
    files->file_bytes_ += size;
  }
  files->paths_ = std::move(paths);
  files->field_ = std::string(field);
  files->block_bytes_ = block_bytes;
  return files;
}

int64_t DocumentFiles::file_bytes_read() const {
  return finished_bytes_ + (reader_.has_value() ? reader_->file_bytes_read() : 0);
}

absl::StatusOr<bool> DocumentFiles::Next(std::string* document) {
  while (true) {
    if (!reader_.has_value()) {
      if (next_ == paths_.size()) return false;
      const std::string& path = paths_[next_++];
      OT_ASSIGN_OR_RETURN(LineReader reader, LineReader::Open(path));
      reader_.emplace(std::move(reader));
      is_text_ = absl::EndsWith(StripCompression(path), ".txt");
      if (is_text_) {
        OT_ASSIGN_OR_RETURN(rest_, reader_->Rest());
        const absl::Status valid = CheckUtf8(rest_);
        if (!valid.ok()) return Annotate(valid, path);
      }
    }
    OT_ASSIGN_OR_RETURN(const bool found, is_text_ ? NextBlock(document) : NextLine(document));
    if (found) return true;
    finished_bytes_ += reader_->file_bytes_read();
    reader_.reset();
  }
}

absl::StatusOr<bool> DocumentFiles::NextBlock(std::string* document) {
  if (rest_.empty()) return false;
  size_t length = rest_.size();
  if (block_bytes_ > 0 && length > block_bytes_) {
    const size_t end = rest_.find('\n', block_bytes_ - 1);
    if (end != absl::string_view::npos) length = end + 1;
  }
  document->assign(rest_.data(), length);
  rest_.remove_prefix(length);
  return true;
}

absl::StatusOr<bool> DocumentFiles::NextLine(std::string* document) {
  absl::string_view line;
  while (true) {
    OT_ASSIGN_OR_RETURN(const bool more, reader_->Next(&line));
    if (!more) return false;
    if (line.find_first_not_of(" \t") == absl::string_view::npos) continue;
    const absl::StatusOr<absl::string_view> text = parser_.Text(line, field_);
    if (text.ok()) {
      document->assign(text->data(), text->size());
      return true;
    }
    if (++bad_lines_ == 1) {
      first_bad_line_ =
          absl::StrCat(paths_[next_ - 1], ":", reader_->line(), ": ", text.status().message());
    }
    if (bad_lines_ > kMostBadLines) {
      return absl::InvalidArgumentError(absl::StrCat(
          "more than ", kMostBadLines, " bad lines, the first of them ", first_bad_line_));
    }
  }
}

}  // namespace overtok

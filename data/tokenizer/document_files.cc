#include "data/tokenizer/document_files.h"

#include <simdjson.h>

#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "core/io/files.h"

namespace overtok {
namespace {

// A .txt file is handed out in blocks of at least this size that end with a line.
constexpr size_t kBlockBytes = size_t{1} << 20;

class DocumentFiles {
 public:
  DocumentFiles(std::vector<std::string> paths, std::string field)
      : paths_(std::move(paths)), field_(std::move(field)) {}

  absl::StatusOr<bool> Next(std::string* document) {
    while (true) {
      if (!open_) {
        if (next_ == paths_.size()) return false;
        stream_ = std::ifstream(paths_[next_], std::ios::binary);
        if (!stream_) return absl::NotFoundError(absl::StrCat(paths_[next_], ": cannot be read"));
        open_ = true;
        line_number_ = 0;
        ++next_;
      }
      OT_ASSIGN_OR_RETURN(const bool found, absl::EndsWith(paths_[next_ - 1], ".txt")
                                                ? NextBlock(document)
                                                : NextLine(document));
      if (found) return true;
      if (stream_.bad()) {
        return absl::DataLossError(absl::StrCat(paths_[next_ - 1], ": reading failed"));
      }
      open_ = false;
    }
  }

 private:
  absl::StatusOr<bool> NextBlock(std::string* document) {
    document->clear();
    std::string line;
    while (document->size() < kBlockBytes && std::getline(stream_, line)) {
      document->append(line);
      if (!stream_.eof()) document->push_back('\n');
    }
    return !document->empty();
  }

  absl::StatusOr<bool> NextLine(std::string* document) {
    std::string line;
    while (std::getline(stream_, line)) {
      ++line_number_;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      simdjson::dom::element value;
      const simdjson::error_code parsed = parser_.parse(line).get(value);
      absl::string_view problem;
      std::string_view text;
      if (parsed != simdjson::SUCCESS) {
        problem = simdjson::error_message(parsed);
      } else if (value[field_].get(text) != simdjson::SUCCESS) {
        problem = "no text under the field";
      } else {
        document->assign(text.data(), text.size());
        return true;
      }
      return absl::InvalidArgumentError(absl::StrCat(paths_[next_ - 1], ":", line_number_, ": ",
                                                     problem, " (field \"", field_,
                                                     "\"; expected one JSON object a line)"));
    }
    return false;
  }

  std::vector<std::string> paths_;
  std::string field_;
  size_t next_ = 0;
  bool open_ = false;
  int64_t line_number_ = 0;
  std::ifstream stream_;
  simdjson::dom::parser parser_;
};

}  // namespace

absl::StatusOr<DocumentSource> OpenDocumentFiles(const std::vector<std::string>& paths,
                                                 absl::string_view field, int64_t* total_bytes) {
  *total_bytes = 0;
  for (const std::string& path : paths) {
    if (!absl::EndsWith(path, ".txt") && !absl::EndsWith(path, ".jsonl")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": unknown kind of file; expected .txt or .jsonl"));
    }
    OT_ASSIGN_OR_RETURN(const int64_t size, FileSize(path));
    *total_bytes += size;
  }
  auto files = std::make_shared<DocumentFiles>(paths, std::string(field));
  return DocumentSource([files](std::string* document) { return files->Next(document); });
}

}  // namespace overtok

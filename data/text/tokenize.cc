#include "data/text/tokenize.h"

#include <sys/stat.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "core/io/files.h"
#include "core/io/hash.h"
#include "data/text/gzip_writer.h"
#include "data/text/line_reader.h"
#include "data/text/new_directory.h"

namespace overtok {
namespace {

absl::string_view BaseName(absl::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == absl::string_view::npos ? path : path.substr(slash + 1);
}

// Writes held-out documents to <directory>/<subset>/val/val.jsonl.gz.
class HeldOutWriter {
 public:
  explicit HeldOutWriter(std::string directory) : directory_(std::move(directory)) {}

  absl::Status Append(const std::string& subset, const std::string& source,
                      const EncodedDocument& document) {
    std::unique_ptr<GzipWriter>& writer = writers_[subset];
    if (writer == nullptr) {
      const std::string folder = JoinPath(JoinPath(directory_, subset), "val");
      OT_RETURN_IF_ERROR(CreateDirectories(folder));
      OT_ASSIGN_OR_RETURN(writer, GzipWriter::Create(JoinPath(folder, "val.jsonl.gz")));
    }
    nlohmann::ordered_json line;
    line["id"] = absl::StrCat(source, ":", document.line);
    line["source"] = subset;
    line["text"] = std::string(document.text);
    // The text is valid UTF-8, or it would not have been encoded.
    return writer->Write(line.dump() + "\n");
  }

  absl::Status Close() {
    for (auto& [subset, writer] : writers_) OT_RETURN_IF_ERROR(writer->Close());
    return absl::OkStatus();
  }

 private:
  const std::string directory_;
  std::map<std::string, std::unique_ptr<GzipWriter>> writers_;
};

// Where the shards came from, for people and for comparing two corpora.
absl::Status WriteSources(const TokenizeOptions& options, const TokenizeResult& result,
                          const std::string& directory) {
  nlohmann::ordered_json json;
  const ShardIdentity& identity = options.encode.identity;
  json["tokenizer_name"] = identity.tokenizer_name;
  json["tokenizer_hash"] = identity.tokenizer_hash;
  json["document_form"] = identity.form.ToString();
  json["documents"] = result.documents;
  json["tokens"] = result.tokens;
  json["text_bytes"] = result.text_bytes;
  json["held_out_documents"] = result.held_out_documents;
  json["empty_documents"] = result.counts.empty_documents;
  json["bad_lines"] = result.counts.bad_lines;
  json["sources"] = nlohmann::ordered_json::array();
  for (const std::string& path : options.files) {
    nlohmann::ordered_json source;
    source["name"] = std::string(BaseName(path));
    OT_ASSIGN_OR_RETURN(const int64_t bytes, FileSize(path));
    OT_ASSIGN_OR_RETURN(const std::string sha256, Sha256HexOfFile(path));
    source["bytes"] = bytes;
    source["sha256"] = sha256;
    json["sources"].push_back(source);
  }
  // Names of files need not be UTF-8.
  return WriteFileAtomically(
      JoinPath(directory, "sources.json"),
      json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

bool IsHeldOut(absl::string_view text, double share) {
  // The upper 53 bits as a fraction: exact in double.
  const uint64_t hash = Xxh3(text.data(), static_cast<int64_t>(text.size()));
  return static_cast<double>(hash >> 11) * 0x1p-53 < share;
}

absl::Status Run(const TokenizeOptions& options, const std::string& partial,
                 TokenizeResult* result) {
  double megabytes = 0;
  for (const std::string& path : options.files) {
    OT_ASSIGN_OR_RETURN(const int64_t bytes, FileSize(path));
    struct stat info;
    if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) {
      // Inputs are read twice: once for their text, once for their hash.
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is not a regular file; write what a pipe gives to a file first"));
    }
    megabytes += static_cast<double>(bytes) / 1e6;
  }
  Progress progress("tokenize", megabytes, "MB");
  EncodeOptions encode = options.encode;
  encode.progress = options.show_progress ? &progress : nullptr;
  OT_ASSIGN_OR_RETURN(std::unique_ptr<ShardWriter> shards,
                      ShardWriter::Create(partial, encode.identity, options.tokens_per_shard));
  HeldOutWriter held_out(JoinPath(partial, "held_out"));
  const auto consume = [&](const EncodedDocument& document) -> absl::Status {
    const std::string& path = options.files[document.file];
    if (options.held_out > 0 && IsHeldOut(document.text, options.held_out)) {
      ++result->held_out_documents;
      result->held_out_bytes += static_cast<int64_t>(document.text.size());
      return held_out.Append(
          options.held_out_name.empty() ? SubsetName(path) : options.held_out_name,
          std::string(BaseName(path)), document);
    }
    const int64_t text_bytes = static_cast<int64_t>(document.text.size());
    result->text_bytes += text_bytes;
    return shards->Append(document.ids.data(), static_cast<int64_t>(document.ids.size()),
                          text_bytes);
  };
  OT_ASSIGN_OR_RETURN(result->counts, EncodeFiles(options.files, encode, consume));
  const EncodeCounts& counts = result->counts;
  result->documents = shards->documents();
  result->tokens = shards->tokens();
  if (result->documents == 0) {
    std::string reason =
        absl::StrCat("no document to write in ", options.files.size(), " files (first ",
                     options.files.front(), "): ", counts.empty_documents, " empty documents, ",
                     counts.bad_lines, " bad lines, ", result->held_out_documents, " held out");
    if (!counts.bad_examples.empty()) {
      absl::StrAppend(&reason, "; the first bad line is ", counts.bad_examples.front());
    }
    return absl::InvalidArgumentError(reason);
  }
  OT_RETURN_IF_ERROR(shards->Finish());
  OT_RETURN_IF_ERROR(held_out.Close());
  return WriteSources(options, *result, partial);
}

}  // namespace

absl::StatusOr<TokenizeResult> TokenizeFiles(const TokenizeOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  OT_RETURN_IF_ERROR(CheckInputNames(options.files, options.encode.tokenizer == nullptr));
  if (options.held_out > 0 && options.encode.tokenizer == nullptr) {
    return absl::InvalidArgumentError(
        "held-out documents are written as text, and files of ids have none");
  }
  TokenizeResult result;
  OT_RETURN_IF_ERROR(FillNewDirectory(
      options.out, [&](const std::string& partial) { return Run(options, partial, &result); }));
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

std::string SubsetName(absl::string_view path) {
  absl::string_view name = StripCompression(BaseName(path));
  const size_t dot = name.rfind('.');
  if (dot != absl::string_view::npos && dot > 0) name = name.substr(0, dot);
  absl::string_view stem = name;
  while (!stem.empty() && stem.back() >= '0' && stem.back() <= '9') stem.remove_suffix(1);
  while (!stem.empty() && (stem.back() == '-' || stem.back() == '_' || stem.back() == '.')) {
    stem.remove_suffix(1);
  }
  return std::string(stem.empty() ? name : stem);
}

absl::StatusOr<double> ParseShare(absl::string_view text) {
  absl::string_view number = text;
  const bool percent = absl::ConsumeSuffix(&number, "%");
  double value = 0;
  // The negated comparison refuses NaN too.
  if (!absl::SimpleAtod(number, &value) || !(value >= 0 && value < (percent ? 100 : 1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text,
                     "\" is not a share: expected something like 1% or 0.01, at least 0 and below "
                     "100%"));
  }
  return percent ? value / 100 : value;
}

}  // namespace overtok

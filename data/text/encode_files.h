// Files to encoded documents, on all cores: one thread reads and decompresses, the others parse and
// encode pieces of about a megabyte, and the caller receives documents in the order of the files
// and lines, whatever the number of threads. Only a few pieces are in memory at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/console.h"
#include "core/status.h"
#include "data/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace overtok {

struct EncodeOptions {
  const Tokenizer* tokenizer = nullptr;  // null: files hold decimal ids, one document a line
  ShardIdentity identity;  // special ids and the form of documents; of `ids`, the vocabulary too
  std::string field = "text";       // of .jsonl files
  int threads = 0;                  // that encode; 0: one per core
  int64_t largest_bad_count = 100;  // more bad lines than this stop the work with an error
  Progress* progress = nullptr;     // told the megabytes read of the files
};

// A document as the consumer sees it; views live until the call returns.
struct EncodedDocument {
  absl::Span<const uint32_t> ids;  // with BOS and EOS as the form asks
  absl::string_view text;          // empty for `ids` files
  size_t file = 0;                 // index into the list of files
  int64_t line = 0;                // from 1; 1 for a .txt file, which is one document
};

struct EncodeCounts {
  int64_t documents = 0, text_bytes = 0, tokens = 0;
  int64_t empty_documents = 0;            // skipped
  int64_t byte_order_marks = 0;           // files that started with one (skipped)
  int64_t bad_lines = 0;                  // skipped
  std::vector<std::string> bad_examples;  // "file:line: reason" of the first ten
};

// Endings that are read: .jsonl and .txt, each also .gz or .zst; `ids` files may be called
// anything.
absl::Status CheckInputNames(const std::vector<std::string>& paths, bool ids);

// The special ids and hash of a tokenizer as shards carry them, for documents of `form`. An error
// when the form needs an id that the tokenizer lacks.
absl::StatusOr<ShardIdentity> IdentityOf(const Tokenizer& tokenizer, const DocumentForm& form);

// Reads `paths` in the order given and calls `consume` for every document; an error of `consume`
// stops everything and is returned. No document at all is no error here.
absl::StatusOr<EncodeCounts> EncodeFiles(
    const std::vector<std::string>& paths, const EncodeOptions& options,
    const std::function<absl::Status(const EncodedDocument&)>& consume);

}  // namespace overtok

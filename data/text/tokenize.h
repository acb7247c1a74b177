// Text files to a directory of shards, with an optional held-out part in Paloma's layout.
// Everything is written to `out`.partial and renamed when complete, so a run that was stopped
// leaves nothing that looks finished.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "data/text/encode_files.h"

namespace overtok {

struct TokenizeOptions {
  std::vector<std::string> files;
  std::string out;  // must not exist, or be empty
  EncodeOptions encode;
  int64_t tokens_per_shard = int64_t{1} << 27;
  // Share of documents to hold out, chosen by the hash of their text: it does not depend on order,
  // files or seeds, and equal documents go to the same side. 0: none.
  double held_out = 0;
  std::string held_out_name;  // of the subset; empty: SubsetName of each file
  bool show_progress = true;
};

struct TokenizeResult {
  EncodeCounts counts;                                // of everything that was read
  int64_t documents = 0, tokens = 0, text_bytes = 0;  // in the shards
  int64_t held_out_documents = 0, held_out_bytes = 0;
  double seconds = 0;
};

// Errors: `out` in use, unreadable or cut-off input, too many bad lines, no document at all, no
// space.
absl::StatusOr<TokenizeResult> TokenizeFiles(const TokenizeOptions& options);

// "part" for "x/part-00017.jsonl.gz": the name without endings and without a number at its end.
std::string SubsetName(absl::string_view path);

// "1%" or "0.01" as 0.01; an error outside [0, 1).
absl::StatusOr<double> ParseShare(absl::string_view text);

}  // namespace overtok

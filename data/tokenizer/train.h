// Byte-level BPE training. Deterministic: the same text gives the same vocabulary whatever the
// number of threads and the order of documents.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "core/status.h"
#include "data/tokenizer/bpe_definition.h"
#include "data/tokenizer/word_counts.h"

namespace overtok {

struct TrainOptions {
  int64_t vocab_size = 0;          // special tokens included
  std::string pattern = "llama3";  // a name or an expression, as ResolvePattern takes it
  int threads = 1;
  // May be empty. Phase "counting" (done = bytes, total = 0), then "merging" (done of total).
  std::function<void(absl::string_view phase, double done, double total)> progress;
};

// Ids 0-255 are the single bytes in the order of the byte alphabet, then one entry a merge, in the
// order they were learned, then <|begin_of_text|> and <|end_of_text|>. Each step joins the adjacent
// pair with the highest count inside pieces; among equal counts the one with the lower left id,
// then the lower right id. A pair whose joined bytes are an entry already is passed over, so that
// each entry has one merge and id = 256 + rank. Text with too few pairs that occur twice is an
// error that names the size it suffices for.
absl::StatusOr<BpeDefinition> TrainBpe(const DocumentSource& source, const TrainOptions& options);

}  // namespace overtok

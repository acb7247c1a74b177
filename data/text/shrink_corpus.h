// Token shards to shards of a small vocabulary, without the text behind them. Documents stream
// through one at a time; the whole corpus is never in memory.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

struct ShrinkOptions {
  BpeDefinition tokenizer;          // the one that the shards were made with
  int64_t keep = 0;                 // K: its tokens that stay; added tokens get the ids from K on
  std::vector<std::string> shards;  // as Corpus::Open takes them
  std::string out;                  // must not exist, or be empty
  int64_t tokens_per_shard = int64_t{1} << 27;
  // Encodes the text of every document again (its ids' bytes) and counts those that differ.
  bool check = false;
  bool show_progress = true;
};

struct ShrinkResult {
  int64_t documents = 0;
  int64_t tokens_before = 0, tokens = 0;
  int64_t vocab_size = 0;  // of the small tokenizer, added tokens included
  // With `check`: documents that are not what encoding their text gives, and where the first is.
  int64_t different_documents = 0;
  std::string first_difference;
  double seconds = 0;
};

// Writes `out`/shard_00000.h5, ..., `out`/tokenizer.json (the small tokenizer) and
// `out`/sources.json. Documents, their order, their text bytes and their form stay. The result is
// what tokenizing the text with the small tokenizer gives wherever the stored ids are what the big
// one gives; other ids become the same expansions of each id. Errors: `keep` outside 256 .. tokens
// of the model, shards of another tokenizer, a damaged shard, an id that is no token, `out` in use.
absl::StatusOr<ShrinkResult> ShrinkCorpus(const ShrinkOptions& options);

}  // namespace overtok

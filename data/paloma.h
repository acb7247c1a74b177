// Evaluation collections: a directory in Paloma's layout, <subset>/val/*.jsonl.gz (also .jsonl,
// .jsonl.zst), or the same tree of token shards, <subset>/val/*.h5. Text is encoded as the training
// data was; the whole collection is held in memory (about 8 bytes an id).
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "data/shard.h"
#include "data/tokenizer/tokenizer.h"

namespace overtok {

struct EvalSubset {
  std::string name;  // tag: the directory's name, only 4chan_meta_sep becomes 4chan
  int64_t documents = 0;
  int64_t text_bytes = 0;  // UTF-8 bytes of all documents; 0 where unknown
  // The documents one after another: files in natural order, documents in file order.
  std::vector<uint32_t> ids;
  // Per id. Bytes of text that the token stands for: 0 for BOS, EOS and other special tokens, and
  // the space that the recipe puts before EOS is not text either. Empty where the collection does
  // not say (see has_exact_bytes).
  std::vector<uint16_t> exact_bytes;
  // Levanter's count (TokenBytes::levanter), which includes that space. Empty without a tokenizer.
  std::vector<uint16_t> levanter_bytes;
};

struct EvalCollection {
  std::string set;                   // name of the directory
  bool is_paloma = false;            // all 16 subsets of Paloma are here, and nothing else
  ShardIdentity identity;            // of the ids
  std::vector<EvalSubset> subsets;   // by directory name; none is empty of ids
  std::vector<std::string> empty;    // names of subsets whose files hold no document
  std::vector<std::string> missing;  // names of Paloma's subsets that are not here, when some are
  bool has_exact_bytes = false;
  // Token shards without their tokenizer: a document's bytes are spread evenly over its ids, so
  // that sums are exact for whole documents and close for windows.
  bool exact_bytes_are_spread = false;
  bool has_levanter_bytes = false;
  // SHA-256 over names, sizes and contents of the files that were read; for shards, over their ids.
  std::string content_hash;
};

struct EvalOptions {
  // Of the training data: text is encoded in its form, and ids must come from the same tokenizer.
  // Left out (vocab_size 0): the tokenizer's own, BOS + text + EOS.
  ShardIdentity identity;
  std::string split = "val";
  std::string field = "text";
  int threads = 0;
};

// `tokenizer` may be null for trees of shards. Errors: no such directory, no subset in it, text
// without a tokenizer, another tokenizer than the training data's, unreadable files or bad lines
// (evaluation text is never skipped), and nothing but empty subsets.
absl::StatusOr<EvalCollection> LoadEvalCollection(absl::string_view directory,
                                                  const Tokenizer* tokenizer,
                                                  const EvalOptions& options);

// The 16 directories of Paloma, as they are called on disk.
const std::vector<std::string>& PalomaSubsets();
// The tag of a subset's directory.
std::string SubsetTag(absl::string_view directory_name);

}  // namespace overtok

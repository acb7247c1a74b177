// The K lowest ranks of a byte-level BPE vocabulary as a vocabulary of its own, and what every id
// of the big one is in it (docs/methods/small_vocabulary.md). A merge only ever joins results of
// lower ranks, so the small vocabulary's encoding of a text is a state that the big one's passes
// through: each big token is there a run of small ones that depends on the token alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "data/shard.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

class SmallVocabulary {
 public:
  // Keeps `keep` tokens of `full`; its added tokens get the ids from `keep` on, in their order.
  // `path` is where the small tokenizer will be stored: its name. Errors: those of
  // TruncateDefinition.
  static absl::StatusOr<SmallVocabulary> Create(const BpeDefinition& full, int64_t keep,
                                                absl::string_view path);

  // The small tokenizer as its file reads, and the text of that file. (Reading numbers the merges
  // anew, so only this form has the hash that others will see.)
  const BpeDefinition& definition() const { return definition_; }
  const std::string& tokenizer_json() const { return tokenizer_json_; }

  // The ids of the big vocabulary's token `id`: itself below `keep`, the small merges' encoding of
  // its bytes from there on, one id for an added token. Empty for an id that is no token.
  absl::Span<const uint32_t> Expand(uint32_t id) const {
    if (id + size_t{1} >= begins_.size()) return {};
    return absl::MakeConstSpan(ids_).subspan(begins_[id], begins_[id + 1] - begins_[id]);
  }

  // Identity of shards that hold the expansions of shards with `full`'s hash: an error when those
  // were made by another tokenizer.
  absl::StatusOr<ShardIdentity> Convert(const ShardIdentity& identity) const;

 private:
  SmallVocabulary() = default;

  std::string full_name_, full_hash_;
  BpeDefinition definition_;
  std::string tokenizer_json_;
  std::vector<size_t> begins_;  // one for every id of the big vocabulary, and the end
  std::vector<uint32_t> ids_;   // expansions, one after another
};

}  // namespace overtok

#include "data/text/small_vocabulary.h"

#include "core/check.h"
#include "data/tokenizer/bpe_model.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/truncate.h"

namespace overtok {

absl::StatusOr<SmallVocabulary> SmallVocabulary::Create(const BpeDefinition& full, int64_t keep,
                                                        absl::string_view path) {
  SmallVocabulary result;
  result.full_name_ = full.name;
  result.full_hash_ = HashDefinition(full);
  OT_ASSIGN_OR_RETURN(const BpeDefinition cut, TruncateDefinition(full, keep));
  OT_ASSIGN_OR_RETURN(result.tokenizer_json_, FormatTokenizerJson(cut));
  OT_ASSIGN_OR_RETURN(result.definition_, ParseTokenizerJson(path, result.tokenizer_json_));
  OT_CHECK_EQ(VocabSize(result.definition_), keep + static_cast<int64_t>(full.added.size()));

  const BpeModel merges(result.definition_);
  auto added = full.added.begin();
  uint32_t kept = 0;
  const size_t size = static_cast<size_t>(VocabSize(full));
  result.begins_.reserve(size + 1);
  for (size_t id = 0; id < size; ++id) {
    result.begins_.push_back(result.ids_.size());
    const bool is_added = added != full.added.end() && added->id == id;
    if (is_added) {
      // Added tokens ascend, and so do their new ids.
      result.ids_.push_back(static_cast<uint32_t>(keep + (added - full.added.begin())));
      ++added;
    } else if (id < full.tokens.size() && !full.tokens[id].empty()) {
      // Not left to the merges below `keep`: an entry that no merge makes stays what it is.
      if (kept < keep) {
        result.ids_.push_back(kept++);
      } else {
        merges.EncodePiece(full.tokens[id], &result.ids_);
      }
    }
  }
  result.begins_.push_back(result.ids_.size());
  return result;
}

absl::StatusOr<ShardIdentity> SmallVocabulary::Convert(const ShardIdentity& identity) const {
  if (identity.tokenizer_hash != full_hash_) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shards were made with another tokenizer: ", identity.tokenizer_name, " (",
                     identity.tokenizer_hash, "), and the one to cut down is ", full_name_, " (",
                     full_hash_, "); give the tokenizer that the shards were made with"));
  }
  ShardIdentity small = identity;
  small.tokenizer_name = definition_.name;
  small.tokenizer_hash = HashDefinition(definition_);
  small.vocab_size = VocabSize(definition_);
  const std::pair<const char*, std::optional<uint32_t>*> specials[] = {
      {"bos", &small.bos}, {"eos", &small.eos}, {"pad", &small.pad}};
  for (const auto& [name, id] : specials) {
    if (!id->has_value()) continue;
    const absl::Span<const uint32_t> expansion = Expand(**id);
    if (expansion.size() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("the shards' ", name, " id ", **id, " would become ", expansion.size(),
                       " ids: it is no special token of ", full_name_));
    }
    *id = expansion[0];
  }
  return small;
}

}  // namespace overtok

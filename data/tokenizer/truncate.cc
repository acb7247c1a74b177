#include "data/tokenizer/truncate.h"

#include <limits>
#include <utility>

namespace overtok {

absl::StatusOr<BpeDefinition> TruncateDefinition(const BpeDefinition& full, int64_t keep) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  // Ids without gaps: special tokens may stand before or between the model's.
  std::vector<uint32_t> place(full.tokens.size(), kNone);
  uint32_t count = 0;
  for (size_t id = 0; id < full.tokens.size(); ++id) {
    if (!full.tokens[id].empty()) place[id] = count++;
  }
  if (keep < 256 || keep > count) {
    return absl::InvalidArgumentError(absl::StrCat("cannot keep ", keep, " tokens of ", full.name,
                                                   "; expected 256 (the bytes) to ", count,
                                                   " (all, without special tokens)"));
  }
  for (const AddedToken& token : full.added) {
    if (token.id < place.size() && place[token.id] != kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token \"", token.content, "\" of ", full.name,
                       " is a word of the model as well; such vocabularies cannot be truncated"));
    }
  }
  BpeDefinition small;
  small.name = full.name;
  small.ignore_merges = full.ignore_merges;
  small.nfc = full.nfc;
  small.pre_tokenizer = full.pre_tokenizer;
  small.tokens.resize(static_cast<size_t>(keep));
  for (size_t id = 0; id < place.size(); ++id) {
    if (place[id] < keep) small.tokens[place[id]] = full.tokens[id];
  }
  std::vector<bool> made(count, false);
  uint32_t last = 0;
  bool cut = false;
  for (const BpeMerge& merge : full.merges) {
    const uint32_t result = place[merge.result];
    if (!made[result]) {
      made[result] = true;
      if (result < last) {
        return absl::InvalidArgumentError(
            absl::StrCat("the ids of ", full.name, " are not in the order of its merges: token ",
                         merge.result, " is made after a token with a larger id"));
      }
      last = result;
    }
    cut = cut || result >= keep;
    // Merges are by rank and results by rank too, so operands of a kept merge are kept.
    if (cut || place[merge.left] >= keep || place[merge.right] >= keep) continue;
    small.merges.push_back({merge.rank, place[merge.left], place[merge.right], result});
  }
  uint32_t id = static_cast<uint32_t>(keep);
  for (AddedToken token : full.added) {
    token.id = id++;
    small.added.push_back(std::move(token));
  }
  OT_RETURN_IF_ERROR(FinishDefinition(&small));
  return small;
}

}  // namespace overtok

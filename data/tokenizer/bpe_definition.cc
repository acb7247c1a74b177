// Checks and the hash of a tokenizer's definition.
#include "data/tokenizer/bpe_definition.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "core/io/hash.h"

namespace overtok {
namespace {

// Appends numbers and length-prefixed strings, so that no two definitions share a serialisation.
class Serializer {
 public:
  void Add(uint64_t value) {
    for (int shift = 0; shift < 64; shift += 8) {
      bytes_.push_back(static_cast<char>((value >> shift) & 0xFF));
    }
  }
  void Add(absl::string_view text) {
    Add(static_cast<uint64_t>(text.size()));
    bytes_.append(text.data(), text.size());
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

absl::Status CheckBytes(const BpeDefinition& definition) {
  std::vector<bool> seen(256, false);
  absl::flat_hash_map<absl::string_view, uint32_t> ids;
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (token.empty()) continue;
    if (token.size() == 1) seen[static_cast<uint8_t>(token[0])] = true;
    const auto [it, inserted] = ids.try_emplace(token, static_cast<uint32_t>(id));
    if (!inserted) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens ", it->second, " and ", id,
                       " stand for the same bytes; each token must be unique"));
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!seen[byte]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the vocabulary has no token for the byte 0x", absl::Hex(byte, absl::kZeroPad2),
          "; a byte-level vocabulary needs all 256 single bytes"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAdded(const BpeDefinition& definition) {
  absl::flat_hash_set<absl::string_view> contents;
  for (size_t i = 0; i < definition.added.size(); ++i) {
    const AddedToken& token = definition.added[i];
    if (token.content.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token with id ", token.id, " has an empty text"));
    }
    if (!contents.insert(token.content).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token \"", token.content, "\" is listed twice"));
    }
    if (i > 0 && definition.added[i - 1].id == token.id) {
      return absl::InvalidArgumentError(absl::StrCat("the added tokens \"",
                                                     definition.added[i - 1].content, "\" and \"",
                                                     token.content, "\" share the id ", token.id));
    }
    // An ordinary word of the vocabulary may also be listed as added; a special token may not be a
    // token that text can produce.
    if (token.id < definition.tokens.size() && !definition.tokens[token.id].empty() &&
        (token.special || definition.tokens[token.id] != token.content)) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token \"", token.content, "\" has the id ", token.id,
                       ", which belongs to another token of the vocabulary"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMerges(const BpeDefinition& definition) {
  const std::vector<std::string>& tokens = definition.tokens;
  const auto known = [&](uint32_t id) { return id < tokens.size() && !tokens[id].empty(); };
  for (size_t i = 0; i < definition.merges.size(); ++i) {
    const BpeMerge& merge = definition.merges[i];
    if (!known(merge.left) || !known(merge.right) || !known(merge.result) ||
        tokens[merge.left] + tokens[merge.right] != tokens[merge.result]) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", i, " joins the tokens ", merge.left, " and ", merge.right,
                       ", but their joined bytes are not token ", merge.result));
    }
  }
  return absl::OkStatus();
}

}  // namespace

int64_t VocabSize(const BpeDefinition& definition) {
  int64_t size = static_cast<int64_t>(definition.tokens.size());
  for (const AddedToken& token : definition.added) size = std::max(size, int64_t{token.id} + 1);
  return size;
}

absl::Status FinishDefinition(BpeDefinition* definition) {
  std::stable_sort(definition->added.begin(), definition->added.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  OT_RETURN_IF_ERROR(CheckBytes(*definition));
  OT_RETURN_IF_ERROR(CheckAdded(*definition));
  return CheckMerges(*definition);
}

std::string HashDefinition(const BpeDefinition& definition) {
  Serializer out;
  out.Add("overtok byte-level bpe 1");
  out.Add(definition.tokens.size());
  for (const std::string& token : definition.tokens) out.Add(token);
  out.Add(definition.merges.size());
  for (const BpeMerge& merge : definition.merges) {
    out.Add(merge.rank);
    out.Add(merge.left);
    out.Add(merge.right);
    out.Add(merge.result);
  }
  out.Add(definition.ignore_merges);
  out.Add(definition.nfc);
  out.Add(definition.pre_tokenizer.splits.size());
  for (const SplitSpec& split : definition.pre_tokenizer.splits) {
    out.Add(split.pattern);
    out.Add(split.literal);
  }
  out.Add(definition.pre_tokenizer.add_prefix_space);
  out.Add(definition.pre_tokenizer.gpt2_split);
  out.Add(definition.added.size());
  for (const AddedToken& token : definition.added) {
    out.Add(token.content);
    out.Add(token.id);
    out.Add(static_cast<uint64_t>(token.special | token.normalized << 1 | token.single_word << 2 |
                                  token.lstrip << 3 | token.rstrip << 4));
  }
  return Sha256Hex(out.bytes());
}

}  // namespace overtok

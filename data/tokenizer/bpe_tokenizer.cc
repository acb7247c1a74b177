// Encoding of whole texts. The pieces of a text repeat so much that most are answered by a cache;
// only the rest is merged.
#include "data/tokenizer/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <utility>

#include "data/tokenizer/piece_cache.h"
#include "data/tokenizer/utf8.h"

namespace overtok {
namespace {

constexpr std::array<const char*, 5> kBosNames = {
    "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>",
    "<\xEF\xBD\x9C"
    "begin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};
constexpr std::array<const char*, 5> kEosNames = {
    "<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"};

uint64_t NextCacheOwner() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

std::vector<std::pair<std::string, uint32_t>> AddedOf(const BpeDefinition& definition,
                                                      bool normalized) {
  std::vector<std::pair<std::string, uint32_t>> tokens;
  for (const AddedToken& token : definition.added) {
    if (token.normalized == normalized) tokens.emplace_back(token.content, token.id);
  }
  return tokens;
}

absl::StatusOr<std::optional<uint32_t>> ChooseBoundary(const BpeDefinition& definition,
                                                       const std::string& asked,
                                                       absl::string_view option,
                                                       const std::array<const char*, 5>& names) {
  const auto find = [&](absl::string_view content) -> std::optional<uint32_t> {
    for (const AddedToken& token : definition.added) {
      if (token.content == content) return token.id;
    }
    return std::nullopt;
  };
  if (asked.empty()) {
    for (const char* name : names) {
      if (const std::optional<uint32_t> id = find(name)) return id;
    }
    return std::optional<uint32_t>();
  }
  if (const std::optional<uint32_t> id = find(asked)) return id;
  std::string known;
  int listed = 0;
  for (const AddedToken& token : definition.added) {
    if (!token.special || ++listed > 8) continue;
    absl::StrAppend(&known, known.empty() ? "" : ", ", token.content);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "the ", option, " token \"", asked, "\" is not an added token of ", definition.name,
      "; its special tokens begin with: ", known.empty() ? "(it has none)" : known));
}

}  // namespace

BpeTokenizer::BpeTokenizer(BpeDefinition definition, PreTokenizer pre_tokenizer)
    : definition_(std::move(definition)),
      model_(definition_),
      pre_tokenizer_(std::move(pre_tokenizer)),
      raw_added_(AddedOf(definition_, /*normalized=*/false)),
      normalized_added_(AddedOf(definition_, /*normalized=*/true)),
      hash_(HashDefinition(definition_)),
      vocab_size_(VocabSize(definition_)),
      cache_owner_(NextCacheOwner()) {}

absl::StatusOr<std::unique_ptr<BpeTokenizer>> BpeTokenizer::Create(
    BpeDefinition definition, const TokenizerOptions& options) {
  OT_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(definition.pre_tokenizer));
  std::unique_ptr<BpeTokenizer> result(
      new BpeTokenizer(std::move(definition), std::move(pre_tokenizer)));
  OT_ASSIGN_OR_RETURN(result->bos_,
                      ChooseBoundary(result->definition_, options.bos, "BOS", kBosNames));
  OT_ASSIGN_OR_RETURN(result->eos_,
                      ChooseBoundary(result->definition_, options.eos, "EOS", kEosNames));
  return result;
}

absl::Status BpeTokenizer::Encode(absl::string_view text, bool parse_added_tokens,
                                  std::vector<uint32_t>* ids) const {
  OT_RETURN_IF_ERROR(CheckUtf8(text));
  if (text.size() >= std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("a text of ", text.size(),
                                                   " bytes is too long to encode at once; the "
                                                   "limit is 4 GiB"));
  }
  const size_t before = ids->size();
  absl::Status status = parse_added_tokens ? EncodeParsed(text, ids) : EncodePlain(text, ids);
  if (!status.ok()) ids->resize(before);
  return status;
}

absl::Status BpeTokenizer::EncodeParsed(absl::string_view text, std::vector<uint32_t>* ids) const {
  for (const AddedToken& token : definition_.added) {
    if (!token.single_word && !token.lstrip && !token.rstrip) continue;
    return absl::UnimplementedError(absl::StrCat(
        "the added token \"", token.content, "\" of ", definition_.name, " asks for ",
        token.single_word ? "single_word" : (token.lstrip ? "lstrip" : "rstrip"),
        ", which is not supported when added tokens are parsed; encode them as plain text"));
  }
  const auto add = [&](uint32_t id) { ids->push_back(id); };
  return raw_added_.Cut(
      text,
      [&](absl::string_view raw) -> absl::Status {
        std::string buffer;
        absl::string_view normalized = raw;
        if (definition_.nfc) {
          OT_ASSIGN_OR_RETURN(normalized, NormalizeNfc(raw, &buffer));
        }
        return normalized_added_.Cut(
            normalized, [&](absl::string_view plain) { return EncodeNormalized(plain, ids); }, add);
      },
      add);
}

absl::Status BpeTokenizer::EncodePlain(absl::string_view text, std::vector<uint32_t>* ids) const {
  if (!definition_.nfc) return EncodeNormalized(text, ids);
  std::string buffer;
  OT_ASSIGN_OR_RETURN(const absl::string_view normalized, NormalizeNfc(text, &buffer));
  return EncodeNormalized(normalized, ids);
}

absl::Status BpeTokenizer::EncodeNormalized(absl::string_view text,
                                            std::vector<uint32_t>* ids) const {
  PieceCache& cache = PieceCache::OfThread(cache_owner_);
  return pre_tokenizer_.Split(text, [&](absl::string_view piece) {
    if (piece.size() == 1) {
      ids->push_back(model_.byte_id(static_cast<uint8_t>(piece[0])));
      return;
    }
    if (piece.size() > PieceCache::kMaxBytes) {
      model_.EncodePiece(piece, ids);
      return;
    }
    bool hit = false;
    PieceCache::Entry& entry = cache.Find(piece, &hit);
    if (hit) {
      if (entry.count == 1) {
        ids->push_back(entry.ids[0]);
      } else {
        ids->insert(ids->end(), entry.ids, entry.ids + entry.count);
      }
      return;
    }
    const size_t before = ids->size();
    model_.EncodePiece(piece, ids);
    const size_t count = ids->size() - before;
    if (count <= PieceCache::kMaxIds) {
      PieceCache::Store(piece, ids->data() + before, count, &entry);
    }
  });
}

const AddedToken* BpeTokenizer::FindAdded(uint32_t id) const {
  const auto it =
      std::lower_bound(definition_.added.begin(), definition_.added.end(), id,
                       [](const AddedToken& token, uint32_t value) { return token.id < value; });
  return it != definition_.added.end() && it->id == id ? &*it : nullptr;
}

absl::string_view BpeTokenizer::TokenBytes(uint32_t id) const {
  if (id < definition_.tokens.size() && !definition_.tokens[id].empty()) {
    return definition_.tokens[id];
  }
  const AddedToken* token = FindAdded(id);
  return token != nullptr && !token->special ? absl::string_view(token->content)
                                             : absl::string_view();
}

bool BpeTokenizer::IsSpecial(uint32_t id) const {
  const AddedToken* token = FindAdded(id);
  return token != nullptr && token->special;
}

}  // namespace overtok

// Writing tokenizer.json: vocabulary in id order, merges as "a b" strings, which every version of
// Hugging Face `tokenizers` reads.
#include <nlohmann/json.hpp>

#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/portable_pattern.h"
#include "data/tokenizer/tokenizer_json.h"

namespace overtok {
namespace {

using Json = nlohmann::ordered_json;

Json ByteLevel(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", add_prefix_space},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

Json PreTokenizerJson(const PreTokenizerSpec& spec) {
  Json byte_level = ByteLevel(spec.add_prefix_space, spec.gpt2_split);
  if (spec.splits.empty()) return byte_level;
  Json parts = Json::array();
  for (const SplitSpec& split : spec.splits) {
    Json pattern;
    pattern[split.literal ? "String" : "Regex"] = split.pattern;
    parts.push_back({{"type", "Split"},
                     {"pattern", std::move(pattern)},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  parts.push_back(std::move(byte_level));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

absl::Status CheckNumbering(const BpeDefinition& definition) {
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    if (definition.tokens[id].empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "id ", id, " has no token; a tokenizer.json numbers its tokens without gaps"));
    }
  }
  for (size_t i = 0; i < definition.added.size(); ++i) {
    if (definition.added[i].id != definition.tokens.size() + i) {
      return absl::InvalidArgumentError(
          absl::StrCat("the added token \"", definition.added[i].content, "\" has the id ",
                       definition.added[i].id, ", but in a tokenizer.json it would be read as ",
                       definition.tokens.size() + i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> FormatTokenizerJson(const BpeDefinition& definition) {
  OT_RETURN_IF_ERROR(CheckNumbering(definition));
  for (const SplitSpec& split : definition.pre_tokenizer.splits) {
    if (!split.literal) OT_RETURN_IF_ERROR(CheckPortablePattern(split.pattern));
  }
  Json added = Json::array();
  for (const AddedToken& token : definition.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  }
  std::vector<std::string> texts;
  texts.reserve(definition.tokens.size());
  for (const std::string& token : definition.tokens) texts.push_back(ToByteAlphabet(token));
  Json merges = Json::array();
  for (const BpeMerge& merge : definition.merges) {
    merges.push_back(absl::StrCat(texts[merge.left], " ", texts[merge.right]));
  }
  // nlohmann's ordered object looks every key up linearly; an unordered one would lose the order of
  // ids. The vocabulary is therefore written by hand.
  constexpr absl::string_view kVocabMark = "\"vocab\": null";
  Json root = {{"version", "1.0"},
               {"truncation", nullptr},
               {"padding", nullptr},
               {"added_tokens", std::move(added)},
               {"normalizer", definition.nfc ? Json{{"type", "NFC"}} : Json(nullptr)},
               {"pre_tokenizer", PreTokenizerJson(definition.pre_tokenizer)},
               {"post_processor", nullptr},
               {"decoder", ByteLevel(/*add_prefix_space=*/false, /*use_regex=*/false)},
               {"model",
                {{"type", "BPE"},
                 {"dropout", nullptr},
                 {"unk_token", nullptr},
                 {"continuing_subword_prefix", nullptr},
                 {"end_of_word_suffix", nullptr},
                 {"fuse_unk", false},
                 {"byte_fallback", false},
                 {"ignore_merges", definition.ignore_merges},
                 {"vocab", nullptr},
                 {"merges", std::move(merges)}}}};
  try {
    std::string text = root.dump(1);
    // The mark cannot occur earlier: inside strings its quotes would be escaped.
    const size_t at = text.find(kVocabMark.data(), 0, kVocabMark.size());
    std::string vocab = "\"vocab\": {";
    for (size_t id = 0; id < texts.size(); ++id) {
      absl::StrAppend(&vocab, id == 0 ? "\n   " : ",\n   ", nlohmann::json(texts[id]).dump(), ": ",
                      id);
    }
    vocab += "\n  }";
    text.replace(at, kVocabMark.size(), vocab);
    text += '\n';
    return text;
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tokenizer cannot be written as JSON: ", error.what()));
  }
}

}  // namespace overtok

// Reading tokenizer.json. Written for nlohmann's DOM: files are a few megabytes and read once.
#include <nlohmann/json.hpp>

#include "absl/container/flat_hash_map.h"
#include "data/tokenizer/byte_alphabet.h"
#include "data/tokenizer/portable_pattern.h"
#include "data/tokenizer/tokenizer_json.h"

namespace overtok {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kMaxId = (1u << 24) - 1;  // as in rank files

absl::Status Unsupported(absl::string_view key, const std::string& value,
                         absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(key, " is ", value.substr(0, 200),
                                                 ", which is not supported; expected ", expected));
}

// nlohmann throws on wrong types; these ask first. nullptr: absent or null.
const Json* Member(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<bool> BoolMember(const Json& object, const char* key, bool otherwise,
                                absl::string_view where) {
  const Json* value = Member(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return Unsupported(absl::StrCat(where, ".", key), value->dump(), "true or false");
  }
  return value->get<bool>();
}

std::string TypeOf(const Json& object) {
  const Json* type = object.is_object() ? Member(object, "type") : nullptr;
  return type != nullptr && type->is_string() ? type->get<std::string>() : std::string();
}

absl::StatusOr<uint32_t> ReadId(const Json& value, absl::string_view what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > kMaxId) {
    return absl::InvalidArgumentError(absl::StrCat("the id of ", what, " is ", value.dump(),
                                                   "; expected a whole number up to ", kMaxId));
  }
  return static_cast<uint32_t>(value.get<uint64_t>());
}

absl::Status ReadNormalizer(const Json* normalizer, BpeDefinition* definition) {
  if (normalizer == nullptr) return absl::OkStatus();
  const std::string type = TypeOf(*normalizer);
  if (type == "NFC") {
    definition->nfc = true;
    return absl::OkStatus();
  }
  if (type == "Sequence") {
    const Json* parts = Member(*normalizer, "normalizers");
    if (parts != nullptr && parts->is_array()) {
      for (const Json& part : *parts) OT_RETURN_IF_ERROR(ReadNormalizer(&part, definition));
      return absl::OkStatus();
    }
  }
  return Unsupported("normalizer", normalizer->dump(), "null or {\"type\": \"NFC\"}");
}

absl::Status ReadSplit(const Json& split, PreTokenizerSpec* spec) {
  const Json* behavior = Member(split, "behavior");
  if (behavior == nullptr || *behavior != "Isolated") {
    return Unsupported("pre_tokenizer Split.behavior",
                       behavior == nullptr ? "missing" : behavior->dump(), "\"Isolated\"");
  }
  // With "Isolated", `invert` swaps matches and gaps, which are kept alike.
  const Json* pattern = Member(split, "pattern");
  SplitSpec result;
  const Json* regex =
      pattern != nullptr && pattern->is_object() ? Member(*pattern, "Regex") : nullptr;
  const Json* literal =
      pattern != nullptr && pattern->is_object() ? Member(*pattern, "String") : nullptr;
  if (regex != nullptr && regex->is_string()) {
    result.pattern = regex->get<std::string>();
    OT_RETURN_IF_ERROR(CheckPortablePattern(result.pattern));
  } else if (literal != nullptr && literal->is_string()) {
    result.pattern = literal->get<std::string>();
    result.literal = true;
  } else {
    return Unsupported("pre_tokenizer Split.pattern",
                       pattern == nullptr ? "missing" : pattern->dump(),
                       "{\"Regex\": \"...\"} or {\"String\": \"...\"}");
  }
  if (result.pattern.empty()) {
    return Unsupported("pre_tokenizer Split.pattern", "empty", "a pattern that matches something");
  }
  spec->splits.push_back(std::move(result));
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& value, bool last, PreTokenizerSpec* spec) {
  const std::string type = TypeOf(value);
  if (type == "Sequence") {
    const Json* parts = Member(value, "pretokenizers");
    if (parts != nullptr && parts->is_array() && !parts->empty()) {
      for (size_t i = 0; i < parts->size(); ++i) {
        OT_RETURN_IF_ERROR(ReadPreTokenizer((*parts)[i], last && i + 1 == parts->size(), spec));
      }
      return absl::OkStatus();
    }
  }
  if (type == "Split" && !last) return ReadSplit(value, spec);
  if (type == "ByteLevel" && last) {
    OT_ASSIGN_OR_RETURN(spec->add_prefix_space,
                        BoolMember(value, "add_prefix_space", true, "pre_tokenizer ByteLevel"));
    OT_ASSIGN_OR_RETURN(spec->gpt2_split,
                        BoolMember(value, "use_regex", true, "pre_tokenizer ByteLevel"));
    return absl::OkStatus();
  }
  return Unsupported("pre_tokenizer", value.dump(),
                     "ByteLevel, or a Sequence of Split and one ByteLevel at its end");
}

absl::Status ReadDecoder(const Json* decoder) {
  if (decoder == nullptr || TypeOf(*decoder) == "ByteLevel") return absl::OkStatus();
  const Json* parts = TypeOf(*decoder) == "Sequence" ? Member(*decoder, "decoders") : nullptr;
  if (parts != nullptr && parts->is_array() && parts->size() == 1) return ReadDecoder(&(*parts)[0]);
  return Unsupported("decoder", decoder->dump(), "{\"type\": \"ByteLevel\"}");
}

absl::Status ReadModelFlags(const Json& model, BpeDefinition* definition) {
  const std::string type = TypeOf(model);
  if (!type.empty() && type != "BPE") return Unsupported("model.type", type, "\"BPE\"");
  if (const Json* dropout = Member(model, "dropout"); dropout != nullptr && *dropout != 0.0) {
    return Unsupported("model.dropout", dropout->dump(), "null");
  }
  for (const char* key : {"unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Json* value = Member(model, key); value != nullptr && *value != Json("")) {
      return Unsupported(absl::StrCat("model.", key), value->dump(), "null");
    }
  }
  OT_ASSIGN_OR_RETURN(const bool fallback, BoolMember(model, "byte_fallback", false, "model"));
  if (fallback) return Unsupported("model.byte_fallback", "true", "false");
  OT_ASSIGN_OR_RETURN(definition->ignore_merges,
                      BoolMember(model, "ignore_merges", false, "model"));
  return absl::OkStatus();
}

using Ids = absl::flat_hash_map<std::string, uint32_t>;  // by the text in the file

absl::Status ReadVocab(const Json& model, BpeDefinition* definition, Ids* ids) {
  const Json* vocab = Member(model, "vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return absl::InvalidArgumentError("model.vocab is missing or not an object");
  }
  std::vector<bool> used;
  for (const auto& [text, value] : vocab->items()) {
    OT_ASSIGN_OR_RETURN(const uint32_t id, ReadId(value, absl::StrCat("token \"", text, "\"")));
    if (used.size() <= id) {
      used.resize(id + 1, false);
      definition->tokens.resize(id + 1);
    }
    if (used[id]) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.vocab gives the id ", id, " twice, once to \"", text, "\""));
    }
    used[id] = true;
    ids->emplace(text, id);
    // Text outside the byte alphabet is reached as an added token or not at all.
    if (std::optional<std::string> bytes = FromByteAlphabet(text)) {
      definition->tokens[id] = *std::move(bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadAdded(const Json* added, const Ids& ids, BpeDefinition* definition) {
  if (added == nullptr) return absl::OkStatus();
  if (!added->is_array()) return absl::InvalidArgumentError("added_tokens is not an array");
  for (const Json& entry : *added) {
    const Json* content = entry.is_object() ? Member(entry, "content") : nullptr;
    const Json* id = entry.is_object() ? Member(entry, "id") : nullptr;
    if (content == nullptr || !content->is_string() || id == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("added_tokens has an entry without content and id: ", entry.dump()));
    }
    AddedToken token;
    token.content = content->get<std::string>();
    const std::string where = absl::StrCat("added token \"", token.content, "\"");
    OT_ASSIGN_OR_RETURN(token.id, ReadId(*id, where));
    OT_ASSIGN_OR_RETURN(token.special, BoolMember(entry, "special", false, where));
    OT_ASSIGN_OR_RETURN(token.normalized, BoolMember(entry, "normalized", !token.special, where));
    OT_ASSIGN_OR_RETURN(token.single_word, BoolMember(entry, "single_word", false, where));
    OT_ASSIGN_OR_RETURN(token.lstrip, BoolMember(entry, "lstrip", false, where));
    OT_ASSIGN_OR_RETURN(token.rstrip, BoolMember(entry, "rstrip", false, where));
    const auto in_vocab = ids.find(token.content);
    if (in_vocab != ids.end()) {
      if (in_vocab->second != token.id) {
        return absl::InvalidArgumentError(absl::StrCat(where, " has the id ", token.id,
                                                       ", but model.vocab gives it the id ",
                                                       in_vocab->second));
      }
      // Its text in a document must not become the token by way of the merges.
      if (token.special) definition->tokens[token.id].clear();
    }
    definition->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const Json& model, const Ids& ids, BpeDefinition* definition) {
  const Json* merges = Member(model, "merges");
  if (merges == nullptr || !merges->is_array()) {
    return absl::InvalidArgumentError("model.merges is missing or not an array");
  }
  for (size_t i = 0; i < merges->size(); ++i) {
    const Json& merge = (*merges)[i];
    std::string left, right;
    if (merge.is_string()) {
      const std::string& text = merge.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
        left = text.substr(0, space);
        right = text.substr(space + 1);
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    }
    if (left.empty() || right.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("model.merges[", i, "] is ", merge.dump(),
                                                     "; expected \"a b\" or [\"a\", \"b\"]"));
    }
    uint32_t found[3];
    const std::string* texts[3] = {&left, &right, nullptr};
    const std::string joined = left + right;
    texts[2] = &joined;
    for (int k = 0; k < 3; ++k) {
      const auto it = ids.find(*texts[k]);
      if (it == ids.end()) {
        return absl::InvalidArgumentError(absl::StrCat("model.merges[", i, "] needs the token \"",
                                                       *texts[k],
                                                       "\", which is not in model.vocab"));
      }
      found[k] = it->second;
      if (definition->tokens[found[k]].empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("model.merges[", i, "] uses \"", *texts[k],
                         "\", which is a special token or not written in the byte alphabet"));
      }
    }
    definition->merges.push_back(BpeMerge{static_cast<uint32_t>(i), found[0], found[1], found[2]});
  }
  return absl::OkStatus();
}

absl::StatusOr<BpeDefinition> Read(absl::string_view name, const Json& root) {
  BpeDefinition definition;
  definition.name = std::string(name);
  if (!root.is_object()) return absl::InvalidArgumentError("the file is not a JSON object");
  const Json* model = Member(root, "model");
  if (model == nullptr || !model->is_object()) {
    return absl::InvalidArgumentError("model is missing; expected a Hugging Face tokenizer.json");
  }
  for (const char* key : {"truncation", "padding"}) {
    if (const Json* value = Member(root, key)) return Unsupported(key, value->dump(), "null");
  }
  OT_RETURN_IF_ERROR(ReadModelFlags(*model, &definition));
  OT_RETURN_IF_ERROR(ReadNormalizer(Member(root, "normalizer"), &definition));
  const Json* pre_tokenizer = Member(root, "pre_tokenizer");
  if (pre_tokenizer == nullptr) {
    return Unsupported("pre_tokenizer", "null", "ByteLevel, or a Sequence that ends with it");
  }
  OT_RETURN_IF_ERROR(ReadPreTokenizer(*pre_tokenizer, /*last=*/true, &definition.pre_tokenizer));
  OT_RETURN_IF_ERROR(ReadDecoder(Member(root, "decoder")));
  Ids ids;
  OT_RETURN_IF_ERROR(ReadVocab(*model, &definition, &ids));
  OT_RETURN_IF_ERROR(ReadAdded(Member(root, "added_tokens"), ids, &definition));
  OT_RETURN_IF_ERROR(ReadMerges(*model, ids, &definition));
  OT_RETURN_IF_ERROR(FinishDefinition(&definition));
  return definition;
}

}  // namespace

absl::StatusOr<BpeDefinition> ParseTokenizerJson(absl::string_view name,
                                                 absl::string_view contents) {
  try {
    const Json root = Json::parse(contents.begin(), contents.end());
    absl::StatusOr<BpeDefinition> definition = Read(name, root);
    if (!definition.ok()) return Annotate(definition.status(), name);
    return definition;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": not readable as JSON: ", error.what()));
  }
}

}  // namespace overtok

#include "data/tokenizer/rank_file.h"

#include <algorithm>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "data/tokenizer/pre_tokenizer.h"

namespace overtok {
namespace {

// Keeps a typing mistake from asking for a table of billions of ids.
constexpr uint32_t kMaxId = (1u << 24) - 1;

struct RankLine {
  std::string bytes;
  uint32_t rank = 0;
};

absl::StatusOr<RankLine> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> parts = absl::StrSplit(line, ' ');
  RankLine result;
  if (parts.size() != 2 || !absl::Base64Unescape(parts[0], &result.bytes) || result.bytes.empty() ||
      parts[1].empty() || !absl::ascii_isdigit(parts[1][0]) ||
      !absl::SimpleAtoi(parts[1], &result.rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", line.substr(0, 60), "\" is not \"base64 rank\""));
  }
  if (result.rank > kMaxId) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", result.rank, " is above the largest id, ", kMaxId));
  }
  return result;
}

// "text=id" pins an id; without digits after the last "=" the whole string is the text.
absl::StatusOr<AddedToken> ParseSpecial(const std::string& special, uint32_t next_id) {
  AddedToken token;
  token.content = special;
  token.id = next_id;
  const size_t equals = special.rfind('=');
  if (equals != std::string::npos && equals + 1 < special.size() &&
      std::all_of(special.begin() + static_cast<std::ptrdiff_t>(equals) + 1, special.end(),
                  [](char c) { return absl::ascii_isdigit(c); })) {
    token.content = special.substr(0, equals);
    if (!absl::SimpleAtoi(special.substr(equals + 1), &token.id) || token.id > kMaxId) {
      return absl::InvalidArgumentError(absl::StrCat("the id of special token \"", special,
                                                     "\" is above the largest id, ", kMaxId));
    }
  }
  if (token.content.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("special token \"", special, "\" has no text"));
  }
  return token;
}

std::vector<BpeMerge> AllMerges(const std::vector<std::string>& tokens) {
  absl::flat_hash_map<absl::string_view, uint32_t> ids;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty()) ids.emplace(tokens[id], static_cast<uint32_t>(id));
  }
  std::vector<BpeMerge> merges;
  for (uint32_t id = 0; id < tokens.size(); ++id) {
    const absl::string_view token = tokens[id];
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(cut));
      if (right == ids.end()) continue;
      merges.push_back(BpeMerge{id, left->second, right->second, id});
    }
  }
  std::sort(merges.begin(), merges.end(), [](const BpeMerge& a, const BpeMerge& b) {
    return std::tie(a.rank, a.left, a.right) < std::tie(b.rank, b.left, b.right);
  });
  return merges;
}

}  // namespace

bool LooksLikeRankFile(absl::string_view contents) {
  absl::string_view line = contents.substr(0, contents.find('\n'));
  line = absl::StripSuffix(line, "\r");
  return ParseLine(line).ok();
}

absl::StatusOr<BpeDefinition> ParseRankFile(absl::string_view name, absl::string_view contents,
                                            absl::string_view pattern,
                                            const std::vector<std::string>& specials) {
  BpeDefinition definition;
  definition.name = std::string(name);
  if (pattern.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        name,
        " is a rank file, which does not say how text is split: give --pattern gpt2, cl100k, "
        "llama3, qwen2 or a regular expression"));
  }
  OT_ASSIGN_OR_RETURN(std::string expression, ResolvePattern(pattern));
  definition.pre_tokenizer.splits.push_back({std::move(expression), /*literal=*/false});
  definition.ignore_merges = true;
  int64_t line_number = 0;
  for (absl::string_view line : absl::StrSplit(contents, '\n')) {
    ++line_number;
    line = absl::StripSuffix(line, "\r");
    if (line.empty()) continue;
    absl::StatusOr<RankLine> parsed = ParseLine(line);
    if (!parsed.ok()) return Annotate(parsed.status(), absl::StrCat(name, ":", line_number));
    if (definition.tokens.size() <= parsed->rank) definition.tokens.resize(parsed->rank + 1);
    std::string& slot = definition.tokens[parsed->rank];
    if (!slot.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, ":", line_number, ": rank ", parsed->rank, " is given twice"));
    }
    slot = std::move(parsed->bytes);
  }
  definition.merges = AllMerges(definition.tokens);
  uint32_t next_id = static_cast<uint32_t>(definition.tokens.size());
  for (const std::string& special : specials) {
    OT_ASSIGN_OR_RETURN(AddedToken token, ParseSpecial(special, next_id));
    next_id = token.id + 1;
    definition.added.push_back(std::move(token));
  }
  const absl::Status finished = FinishDefinition(&definition);
  if (!finished.ok()) return Annotate(finished, name);
  return definition;
}

}  // namespace overtok

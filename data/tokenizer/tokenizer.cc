// Telling tokenizer files apart, and decoding.
#include "data/tokenizer/tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "core/io/files.h"
#include "data/tokenizer/bpe_tokenizer.h"
#include "data/tokenizer/byte_tokenizer.h"
#include "data/tokenizer/load.h"
#include "data/tokenizer/rank_file.h"
#include "data/tokenizer/tokenizer_json.h"

namespace overtok {

std::string Tokenizer::Decode(const std::vector<uint32_t>& ids) const {
  std::string bytes;
  for (uint32_t id : ids) {
    const absl::string_view token = TokenBytes(id);
    bytes.append(token.data(), token.size());
  }
  return bytes;
}

absl::StatusOr<BpeDefinition> LoadBpeDefinition(absl::string_view path,
                                                const TokenizerOptions& options) {
  OT_ASSIGN_OR_RETURN(const std::string contents, ReadFile(path));
  const size_t start = contents.find_first_not_of(" \t\r\n");
  if (start == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the tokenizer file is empty"));
  }
  if (contents[start] == '{' || absl::StartsWith(contents, "\xEF\xBB\xBF{")) {
    if (!options.pattern.empty() || !options.specials.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, " is a tokenizer.json, which has its own pattern and special tokens: leave out ",
          options.pattern.empty() ? "--special" : "--pattern"));
    }
    return ParseTokenizerJson(path, contents);
  }
  if (LooksLikeRankFile(contents)) {
    return ParseRankFile(path, contents, options.pattern, options.specials);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   ": neither a tokenizer.json (a JSON object) nor a rank file (lines "
                   "\"base64 rank\")"));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(absl::string_view spec,
                                                         const TokenizerOptions& options) {
  if (spec == "bytes") {
    if (!options.pattern.empty() || !options.specials.empty() || !options.bos.empty() ||
        !options.eos.empty()) {
      return absl::InvalidArgumentError(
          "the tokenizer \"bytes\" takes no pattern, special, BOS or EOS token; its BOS is 256, "
          "its "
          "EOS 257 (for a file of that name write ./bytes)");
    }
    return std::unique_ptr<Tokenizer>(std::make_unique<ByteTokenizer>());
  }
  OT_ASSIGN_OR_RETURN(BpeDefinition definition, LoadBpeDefinition(spec, options));
  OT_ASSIGN_OR_RETURN(std::unique_ptr<BpeTokenizer> tokenizer,
                      BpeTokenizer::Create(std::move(definition), options));
  return std::unique_ptr<Tokenizer>(std::move(tokenizer));
}

}  // namespace overtok

// tiktoken's rank files: one token a line, "base64-of-its-bytes rank". There is no merge list: the
// rank of a pair is the rank of its joined bytes.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

// Whether the first line of `contents` has the form of a rank file.
bool LooksLikeRankFile(absl::string_view contents);

// `pattern` as TokenizerOptions.pattern; `specials` as TokenizerOptions.specials. Errors name the
// line. All pairs that join to a token become merges with its rank.
absl::StatusOr<BpeDefinition> ParseRankFile(absl::string_view name, absl::string_view contents,
                                            absl::string_view pattern,
                                            const std::vector<std::string>& specials);

}  // namespace overtok

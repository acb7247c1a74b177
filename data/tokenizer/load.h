// Loading the definition behind a tokenizer file, for those that change it (truncation).
#pragma once

#include "absl/strings/string_view.h"
#include "data/tokenizer/bpe_definition.h"
#include "data/tokenizer/tokenizer.h"

namespace overtok {

// A tokenizer.json or a rank file, told apart by content. Reads options.pattern and
// options.specials only.
absl::StatusOr<BpeDefinition> LoadBpeDefinition(absl::string_view path,
                                                const TokenizerOptions& options);

}  // namespace overtok

// A small vocabulary from a big one: the tokenizer that BPE training would have stopped at.
#pragma once

#include <cstdint>

#include "core/status.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

// Keeps the `keep` lowest-numbered tokens of the model and the merges learned before the first
// entry beyond them; added tokens get the ids from `keep` on, in their order. The ids must be ranks
// (each entry numbered in the order the merges make it), which is checked; `keep` is at least 256
// and at most the number of the model's tokens.
absl::StatusOr<BpeDefinition> TruncateDefinition(const BpeDefinition& full, int64_t keep);

}  // namespace overtok

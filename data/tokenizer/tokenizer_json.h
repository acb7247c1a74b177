// Hugging Face's tokenizer.json, as far as byte-level BPE needs it. What the file asks for and this
// reader does not do is an error that names the key; nothing that changes ids is passed over. Left
// aside on purpose: post_processor, since documents get BOS and EOS from whoever writes them.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

// `name` is used in messages and as the definition's name.
absl::StatusOr<BpeDefinition> ParseTokenizerJson(absl::string_view name,
                                                 absl::string_view contents);

// The text of a tokenizer.json that ParseTokenizerJson and Hugging Face `tokenizers` read. Pairs
// that share a rank are written in order of (rank, left, right). The added tokens' ids must follow
// the model's without a gap, because Hugging Face numbers them so.
absl::StatusOr<std::string> FormatTokenizerJson(const BpeDefinition& definition);

}  // namespace overtok

// How many bytes of text each token stands for, in the two ways that bits per byte are counted.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "data/tokenizer/tokenizer.h"

namespace overtok {

// Length in UTF-8 of `bytes` decoded with every maximal ill-formed piece replaced by U+FFFD (three
// bytes), as the Unicode standard recommends and Python and Rust do.
int64_t ReplacedUtf8Length(absl::string_view bytes);

// Per id of the vocabulary. Exact: the bytes of the token. Levanter's: the UTF-8 length of the
// token decoded on its own, which counts three bytes for each part of a split character. Both are 0
// for special tokens, whose loss still counts.
struct TokenBytes {
  explicit TokenBytes(const Tokenizer& tokenizer);
  std::vector<uint16_t> exact, levanter;  // [vocabulary]
};

}  // namespace overtok

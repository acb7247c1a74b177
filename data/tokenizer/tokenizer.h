// What every tokenizer offers: text in, ids out, and back. Implementations: byte-level BPE
// (tokenizer.json and tiktoken rank files) and raw bytes; `ids` input needs no tokenizer, only its
// special ids. Encoding is const and thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::string name() const = 0;
  virtual int64_t vocab_size() const = 0;  // one more than the largest id, added tokens included
  virtual std::optional<uint32_t> bos() const = 0;
  virtual std::optional<uint32_t> eos() const = 0;
  // Identifies the mapping text -> ids; stored in shards and compared when shards are used
  // together. Hex.
  virtual std::string hash() const = 0;

  // Appends the ids of `text` (no BOS, no EOS). Text that is not valid UTF-8 is an InvalidArgument
  // error with the byte offset. Added-token strings inside the text are plain text unless
  // `parse_added_tokens`.
  virtual absl::Status Encode(absl::string_view text, bool parse_added_tokens,
                              std::vector<uint32_t>* ids) const = 0;

  // The bytes a token stands for; empty for special tokens and for ids that are not in the
  // vocabulary.
  virtual absl::string_view TokenBytes(uint32_t id) const = 0;
  virtual bool IsSpecial(uint32_t id) const = 0;
  std::string Decode(
      const std::vector<uint32_t>& ids) const;  // concatenated bytes; may end inside a character
};

struct TokenizerOptions {
  std::string pattern;  // rank files: gpt2 | cl100k | llama3 | qwen2 | a regular expression
  std::vector<std::string>
      specials;  // rank files: special tokens in id order after the ranks; "text=id" pins an id
  std::string bos, eos;  // token strings that override what the file says
};

// `spec` is "bytes", a tokenizer.json, or a tiktoken rank file; told apart by content, not by name.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(absl::string_view spec,
                                                         const TokenizerOptions& options);

}  // namespace overtok

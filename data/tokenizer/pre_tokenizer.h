// Cuts text into the pieces that merges never cross, with the regular expressions of the tokenizer
// (PCRE2 with Unicode properties, compiled by its JIT). Every byte of the text ends up in exactly
// one piece: what lies between two matches is a piece too.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

// The expression called gpt2, cl100k, llama3 or qwen2; any other text is an expression and is
// returned as it is. Empty text is an error that lists the names.
absl::StatusOr<std::string> ResolvePattern(absl::string_view name_or_expression);

// The expression of GPT-2, which a ByteLevel pre-tokenizer applies on its own.
absl::string_view Gpt2Pattern();

class RegexSplitter;

class PreTokenizer {
 public:
  // An expression that does not compile, or that PCRE2 and the libraries tokenizers are written
  // for read differently, is an InvalidArgument error that quotes it.
  static absl::StatusOr<PreTokenizer> Create(const PreTokenizerSpec& spec);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Calls `take` with the pieces from left to right; none is empty. The views are valid during the
  // call only. `text` is valid UTF-8. Thread-safe.
  absl::Status Split(absl::string_view text,
                     absl::FunctionRef<void(absl::string_view piece)> take) const;

 private:
  PreTokenizer();
  absl::Status SplitFrom(size_t stage, absl::string_view text,
                         absl::FunctionRef<void(absl::string_view piece)> take) const;

  std::vector<std::unique_ptr<RegexSplitter>> splitters_;
  bool add_prefix_space_ = false;
  size_t prefix_stage_ = 0;  // before which splitter the space is added
};

}  // namespace overtok

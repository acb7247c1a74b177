// One expression applied over a text: matches and the gaps between them, as pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "data/tokenizer/bpe_definition.h"

// PCRE2's own names for its types stay out of the headers.
struct pcre2_real_code_8;

namespace overtok {

class RegexSplitter {
 public:
  static absl::StatusOr<std::unique_ptr<RegexSplitter>> Compile(const SplitSpec& spec);
  ~RegexSplitter();
  RegexSplitter(const RegexSplitter&) = delete;
  RegexSplitter& operator=(const RegexSplitter&) = delete;

  // `text` is valid UTF-8; `take` receives non-empty pieces from left to right. A match that needs
  // more memory or steps than PCRE2 allows is an error.
  absl::Status Split(absl::string_view text,
                     absl::FunctionRef<void(absl::string_view piece)> take) const;

 private:
  RegexSplitter() = default;

  pcre2_real_code_8* code_ = nullptr;
  bool jit_ = false;
  bool literal_ = false;
  std::string pattern_;
};

}  // namespace overtok

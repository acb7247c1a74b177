// Whether a split pattern means the same to PCRE2, which overtok uses, and to Oniguruma, which
// Hugging Face `tokenizers` uses.
#pragma once

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// InvalidArgument, naming the construct, for a pattern that the two read differently: it would
// split silently in another way. Conservative: a few harmless uses are refused too.
absl::Status CheckPortablePattern(absl::string_view pattern);

}  // namespace overtok

// UTF-8 at the tokenizer's door: validation with the place of the first mistake, and NFC.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// InvalidArgument with the byte offset of the first sequence that is not UTF-8 (overlong forms,
// surrogates and values above U+10FFFF included).
absl::Status CheckUtf8(absl::string_view text);

// NFC of valid UTF-8. Returns `text` itself where it is in NFC for a trivial reason (no character
// at or above U+0300, which covers ASCII); otherwise normalises into `*buffer` and returns a view
// of it.
absl::StatusOr<absl::string_view> NormalizeNfc(absl::string_view text, std::string* buffer);

}  // namespace overtok

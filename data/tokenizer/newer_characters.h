// Characters whose class (letter, digit, space, ...) differs between the Unicode tables of PCRE2
// and those of the libraries that tokenizers are defined by. Split patterns look at nothing but the
// class, so each such character is replaced, before matching, by an older one of the same class and
// the same number of bytes; the places of the matches stay what they are.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace overtok {

// False when valid UTF-8 `text` holds none of them, which is nearly always. Otherwise stores the
// text with stand-ins in `*replaced`, of equal length, and returns true.
bool ReplaceNewerCharacters(absl::string_view text, std::string* replaced);

}  // namespace overtok

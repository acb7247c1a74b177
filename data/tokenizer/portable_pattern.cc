#include "data/tokenizer/portable_pattern.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace overtok {
namespace {

// Escapes with another meaning there: \h is a hexadecimal digit, \K, \R and \X differ in what they
// span, \Z and \G in where they hold, \k and \g in how they name groups.
constexpr absl::string_view kEscapes = "hHKRXZGkg";

// The construct at `at` outside and inside a character class; empty when it is harmless.
std::string FindConstruct(absl::string_view pattern, size_t at, bool in_class) {
  const absl::string_view rest = pattern.substr(at);
  if (rest[0] == '\\' && rest.size() > 1) {
    return absl::StrContains(kEscapes, rest[1]) ? std::string(rest.substr(0, 2)) : std::string();
  }
  if (in_class) {
    // Nested classes and intersections.
    if (rest[0] == '[') return "[ inside [...]";
    return absl::StartsWith(rest, "&&") ? "&& inside [...]" : "";
  }
  // Line anchors there, text anchors in PCRE2.
  if (rest[0] == '^' || rest[0] == '$') return std::string(rest.substr(0, 1));
  // {1,3}+ is possessive in PCRE2, a repeated repeat there; \p{L}+ is neither.
  if (absl::StartsWith(rest, "}+")) {
    const size_t open = pattern.rfind('{', at);
    if (open == absl::string_view::npos || open < 2 || pattern[open - 2] != '\\') return "}+";
  }
  if (absl::StartsWith(rest, "(?")) {
    for (size_t i = 2; i < rest.size() && absl::ascii_isalpha(rest[i]); ++i) {
      if (rest[i] != 'i') return absl::StrCat("(?", rest.substr(i, 1));
    }
  }
  return "";
}

}  // namespace

absl::Status CheckPortablePattern(absl::string_view pattern) {
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const std::string found = FindConstruct(pattern, i, in_class);
    if (!found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the pattern \"", pattern, "\" uses ", found, " at byte ", i,
                       ", which the regular expressions of Hugging Face tokenizers (Oniguruma) and "
                       "ours (PCRE2) read differently; write it in another way"));
    }
    if (pattern[i] == '\\') {
      ++i;
    } else if (in_class) {
      in_class = pattern[i] != ']';
    } else if (pattern[i] == '[') {
      in_class = true;
      // A leading ^ negates, a leading ] is a member.
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') ++i;
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') ++i;
    }
  }
  return absl::OkStatus();
}

}  // namespace overtok

#include "trainer/config/key_read.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "trainer/config/numbers.h"

namespace overtok {
namespace {

std::string NumberHint(const YamlValue& value) {
  if (value.kind != YamlValue::Kind::kScalar) return "";
  const absl::string_view text = value.text;
  if (value.quoted && LooksLikeNumber(text)) return "remove the quotes";
  if (text.size() > 1 && text[0] == '0' &&
      absl::ascii_isdigit(static_cast<unsigned char>(text[1]))) {
    return "a leading 0 would mean octal elsewhere, so remove it";
  }
  if (absl::StartsWithIgnoreCase(text, "0x")) return "write it in decimal";
  return "";
}

}  // namespace

absl::Status Expected(const YamlValue& value, absl::string_view what, absl::string_view hint) {
  return absl::InvalidArgumentError(absl::StrCat(value.Describe(), " is not valid; expected ", what,
                                                 hint.empty() ? "" : "; ", hint));
}

bool IsBooleanWord(absl::string_view text) {
  const std::string lower = absl::AsciiStrToLower(text);
  return lower == "true" || lower == "false" || lower == "yes" || lower == "no" || lower == "on" ||
         lower == "off";
}

std::string WholeType(int64_t least, int64_t most) {
  if (least == most) return absl::StrCat("whole number, only ", least);
  const bool bounded = most < (int64_t{1} << 40);
  const bool bounded_below = least > -(int64_t{1} << 40);
  return absl::StrCat("whole number", bounded_below ? absl::StrCat(" >= ", least) : "",
                      bounded ? absl::StrCat(" and <= ", most) : "");
}

absl::Status ReadWhole(const YamlValue& value, int64_t least, int64_t most, int64_t* out) {
  const std::string type = absl::StrCat("a ", WholeType(least, most));
  if (value.kind != YamlValue::Kind::kScalar || value.quoted) {
    return Expected(value, type, NumberHint(value));
  }
  const std::optional<int64_t> number = ParseWhole(value.text);
  if (!number) {
    const std::string hint = NumberHint(value);
    return Expected(value, type, hint.empty() ? "4096, 4_096, 1e9 and 10B are such numbers" : hint);
  }
  if (*number < least || *number > most) return Expected(value, type);
  *out = *number;
  return absl::OkStatus();
}

std::string RealType(Range range) {
  std::string type = "number";
  if (std::isfinite(range.least)) {
    absl::StrAppend(&type, range.above ? " > " : " >= ", FormatReal(range.least));
  }
  if (std::isfinite(range.most)) {
    absl::StrAppend(&type, std::isfinite(range.least) ? " and" : "",
                    range.below ? " < " : " <= ", FormatReal(range.most));
  }
  return type;
}

absl::Status ReadReal(const YamlValue& value, Range range, double* out) {
  const std::string type = absl::StrCat("a ", RealType(range));
  if (value.kind != YamlValue::Kind::kScalar || value.quoted) {
    return Expected(value, type, NumberHint(value));
  }
  const std::optional<double> number = ParseReal(value.text);
  if (!number) return Expected(value, type, NumberHint(value));
  const bool low = range.above ? *number <= range.least : *number < range.least;
  const bool high = range.below ? *number >= range.most : *number > range.most;
  if (low || high) return Expected(value, type);
  *out = *number;
  return absl::OkStatus();
}

absl::Status ReadText(const YamlValue& value, absl::string_view what, std::string* out) {
  if (value.kind != YamlValue::Kind::kScalar) return Expected(value, what);
  if (!value.quoted && (LooksLikeNumber(value.text) || IsBooleanWord(value.text))) {
    return Expected(value, what, "put it in quotes if it is meant as a text");
  }
  if (value.text.empty()) return Expected(value, what, "write null for none");
  *out = value.text;
  return absl::OkStatus();
}

}  // namespace overtok

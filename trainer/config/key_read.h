// Reading single values for keys: what a value has to be, and the error where it is something else.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "trainer/config/key.h"
#include "trainer/config/strict_yaml.h"

namespace overtok {

// "VALUE is not valid; expected WHAT; HINT".
absl::Status Expected(const YamlValue& value, absl::string_view what, absl::string_view hint = "");

inline bool IsNull(const YamlValue& value) { return value.kind == YamlValue::Kind::kNull; }
bool IsBooleanWord(absl::string_view text);  // true, no, On, ...

// "whole number >= 1 and <= 100", with the bounds that say something to a person.
std::string WholeType(int64_t least, int64_t most);
std::string RealType(Range range);

absl::Status ReadWhole(const YamlValue& value, int64_t least, int64_t most, int64_t* out);
absl::Status ReadReal(const YamlValue& value, Range range, double* out);
absl::Status ReadText(const YamlValue& value, absl::string_view what, std::string* out);

}  // namespace overtok

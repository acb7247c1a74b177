// The grammar of numbers in configurations, stricter and wider than YAML's: 4096, 4_096, 1e9, 10B,
// 0.02, 1e-3; never 010, 0x10, nan or inf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace overtok {

// Sign, digits (a single _ may stand between two), fraction, exponent, and a suffix K, M, B or T
// (1e3, 1e6, 1e9, 1e12). A leading zero before another digit is refused: elsewhere it would mean
// octal. Whole numbers are computed exactly, never through a double: 1e9 and 1.5K are whole, 1.5 is
// not. nullopt: not such a number, or out of range.
std::optional<int64_t> ParseWhole(absl::string_view text);
std::optional<double> ParseReal(absl::string_view text);

// True for what ParseReal takes and for what other YAML readers take for a number (010, 0x10,
// .inf, nan): such text must be quoted to be a string.
bool LooksLikeNumber(absl::string_view text);

// The shortest text that ParseReal reads back to the same double.
std::string FormatReal(double value);

}  // namespace overtok

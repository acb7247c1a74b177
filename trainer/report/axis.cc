#include "trainer/report/axis.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/check.h"

namespace overtok {
namespace {

// `value` with up to `digits` significant digits and no trailing zeros.
std::string Significant(double value, int digits) { return absl::StrFormat("%.*g", digits, value); }

std::string Superscript(int number) {
  static const char* const kDigits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  std::string text;
  for (const char c : std::to_string(number)) {
    text += c == '-' ? "⁻" : kDigits[c - '0'];
  }
  return text;
}

// 1, 2 or 5 times a power of ten, at least `rough`.
double RoundStep(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string LinearLabel(double value, double step, bool scientific) {
  if (std::abs(value) < step * 1e-6) return "0";
  if (scientific) return ScientificNumber(value, 3);
  if (std::abs(value) >= 1000) return CompactNumber(value);
  const int decimals = std::max(0, static_cast<int>(std::ceil(-std::log10(step) - 1e-9)));
  return absl::StrFormat("%.*f", decimals, value);
}

}  // namespace

double Axis::Fraction(double value) const {
  if (log) return (std::log(value) - std::log(low)) / (std::log(high) - std::log(low));
  return (value - low) / (high - low);
}

std::string ScientificNumber(double value, int digits) {
  if (value == 0) return "0";
  int exponent = static_cast<int>(std::floor(std::log10(std::abs(value))));
  std::string mantissa = Significant(value / std::pow(10.0, exponent), digits);
  if (mantissa == "10" || mantissa == "-10") {  // rounded up to the next power
    mantissa = mantissa == "10" ? "1" : "-1";
    ++exponent;
  }
  const std::string power = absl::StrCat("10", Superscript(exponent));
  return mantissa == "1" ? power : absl::StrCat(mantissa, "×", power);
}

std::string CompactNumber(double value) {
  const double size = std::abs(value);
  if (size >= 999.5e12) return ScientificNumber(value);
  for (const auto& [unit, suffix] : {std::pair(1e12, "T"), {1e9, "B"}, {1e6, "M"}, {1e3, "k"}}) {
    // 999.5 of the next smaller unit would print as 1000 of it.
    if (size >= unit * 0.9995) return absl::StrCat(Significant(value / unit, 3), suffix);
  }
  return Significant(value, 3);
}

Axis LinearAxis(double low, double high, int ticks, bool from_zero, bool scientific) {
  OT_CHECK(std::isfinite(low) && std::isfinite(high) && low <= high && ticks > 1);
  if (from_zero && low > 0) low = 0;
  if (low == high) {
    const double room = low == 0 ? 1 : std::abs(low) * 0.05;
    low -= from_zero && low == 0 ? 0 : room;
    high += room;
  }
  const double margin = (high - low) * 0.04;
  const bool at_zero = low == 0;  // an axis of counts begins at its zero, without a margin
  Axis axis{at_zero ? 0 : low - margin, high + margin, false, {}};
  const double step = RoundStep((axis.high - axis.low) / ticks);
  for (double k = std::ceil(axis.low / step - 1e-9); k * step <= axis.high * (1 + 1e-12); ++k) {
    axis.ticks.push_back({k * step, LinearLabel(k * step, step, scientific)});
  }
  return axis;
}

Axis LogAxis(double low, double high, int ticks) {
  OT_CHECK(low > 0 && std::isfinite(high) && low <= high && ticks > 1);
  const double widen = std::pow(std::max(high / low, 1.2), 0.05);
  Axis axis{low / widen, high * widen, true, {}};
  const double decades = std::log10(axis.high / axis.low);
  // Labelled: every n-th power of ten, and 2 and 5 between where there is room for them.
  const int every = std::max(1, static_cast<int>(std::ceil(decades / ticks)));
  const bool between = decades * 3 <= ticks + 1;
  const int first = static_cast<int>(std::floor(std::log10(axis.low)));
  const int last = static_cast<int>(std::ceil(std::log10(axis.high)));
  for (int exponent = first; exponent <= last; ++exponent) {
    for (int digit = 1; digit < 10; ++digit) {
      const double value = digit * std::pow(10.0, exponent);
      if (value < axis.low || value > axis.high) continue;
      const bool labelled =
          digit == 1 ? exponent % every == 0 : between && (digit == 2 || digit == 5);
      axis.ticks.push_back({value, labelled ? ScientificNumber(value, 1) : ""});
    }
  }
  return axis;
}

}  // namespace overtok

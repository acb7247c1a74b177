#include "trainer/config/numbers.h"

#include <charconv>
#include <cmath>

#include "absl/strings/ascii.h"
#include "core/check.h"

namespace overtok {
namespace {

// A number taken apart: value = (-1)^negative * digits * 10^exponent.
struct Decimal {
  bool negative = false;
  std::string digits;
  int64_t exponent = 0;
};

bool IsDigit(absl::string_view text, size_t i) {
  return i < text.size() && absl::ascii_isdigit(static_cast<unsigned char>(text[i]));
}

// Appends the digits at *i to `out`, dropping single underscores between digits; false for none or
// for an underscore that stands elsewhere.
bool TakeDigits(absl::string_view text, size_t* i, std::string* out) {
  if (!IsDigit(text, *i)) return false;
  while (*i < text.size()) {
    if (IsDigit(text, *i)) {
      out->push_back(text[(*i)++]);
    } else if (text[*i] == '_') {
      if (!IsDigit(text, *i + 1)) return false;
      ++*i;
    } else {
      break;
    }
  }
  return true;
}

std::optional<Decimal> TakeApart(absl::string_view text) {
  Decimal decimal;
  size_t i = 0;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) decimal.negative = text[i++] == '-';
  if (!TakeDigits(text, &i, &decimal.digits)) return std::nullopt;
  if (decimal.digits.size() > 1 && decimal.digits[0] == '0') return std::nullopt;
  if (i < text.size() && text[i] == '.') {
    ++i;
    const size_t whole = decimal.digits.size();
    if (!TakeDigits(text, &i, &decimal.digits)) return std::nullopt;
    decimal.exponent -= static_cast<int64_t>(decimal.digits.size() - whole);
  }
  if (i < text.size() && (text[i] == 'e' || text[i] == 'E')) {
    ++i;
    bool minus = false;
    if (i < text.size() && (text[i] == '+' || text[i] == '-')) minus = text[i++] == '-';
    std::string digits;
    if (!TakeDigits(text, &i, &digits) || digits.size() > 6) return std::nullopt;
    const int64_t exponent = std::stoll(digits);
    decimal.exponent += minus ? -exponent : exponent;
  }
  if (i + 1 == text.size()) {
    switch (text[i++]) {
      case 'K':
        decimal.exponent += 3;
        break;
      case 'M':
        decimal.exponent += 6;
        break;
      case 'B':
        decimal.exponent += 9;
        break;
      case 'T':
        decimal.exponent += 12;
        break;
      default:
        return std::nullopt;
    }
  }
  if (i != text.size()) return std::nullopt;
  return decimal;
}

}  // namespace

std::optional<int64_t> ParseWhole(absl::string_view text) {
  std::optional<Decimal> decimal = TakeApart(text);
  if (!decimal) return std::nullopt;
  std::string& digits = decimal->digits;
  while (digits.size() > 1 && digits.back() == '0') {
    digits.pop_back();
    ++decimal->exponent;
  }
  if (digits.find_first_not_of('0') == std::string::npos) return 0;
  if (decimal->exponent < 0 || decimal->exponent > 18) return std::nullopt;
  digits.append(static_cast<size_t>(decimal->exponent), '0');
  if (decimal->negative) digits.insert(digits.begin(), '-');
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

std::optional<double> ParseReal(absl::string_view text) {
  const std::optional<Decimal> decimal = TakeApart(text);
  if (!decimal) return std::nullopt;
  const std::string plain =
      (decimal->negative ? "-" : "") + decimal->digits + "e" + std::to_string(decimal->exponent);
  double value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error != std::errc() || end != plain.data() + plain.size() || !std::isfinite(value)) {
    return std::nullopt;
  }
  return value;
}

bool LooksLikeNumber(absl::string_view text) {
  if (TakeApart(text)) return true;
  std::string lower = absl::AsciiStrToLower(text);
  if (!lower.empty() && (lower[0] == '+' || lower[0] == '-')) lower.erase(0, 1);
  if (lower == ".inf" || lower == ".nan" || lower == "inf" || lower == "nan") return true;
  if (lower.rfind("0x", 0) == 0 || lower.rfind("0o", 0) == 0) return true;
  return !lower.empty() && IsDigit(lower, 0) &&
         lower.find_first_not_of("0123456789_.e+-") == std::string::npos;
}

std::string FormatReal(double value) {
  OT_CHECK(std::isfinite(value)) << "configuration values are finite";
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  OT_CHECK(error == std::errc());
  return std::string(buffer, end);
}

}  // namespace overtok

// The vectorised validator answers for whole texts; the scalar one runs only to find the place of
// a mistake.
#include "data/tokenizer/utf8.h"

#include <simdjson.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace overtok {
namespace {

// Length of the well-formed sequence at `p`, 0 when there is none.
int SequenceLength(const uint8_t* p, size_t left) {
  const uint8_t lead = p[0];
  if (lead < 0x80) return 1;
  int length = 0;
  uint8_t low = 0x80, high = 0xBF;  // range of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return 0;
  }
  if (left < static_cast<size_t>(length) || p[1] < low || p[1] > high) return 0;
  for (int i = 2; i < length; ++i) {
    if ((p[i] & 0xC0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

absl::Status CheckUtf8(absl::string_view text) {
  if (simdjson::validate_utf8(text.data(), text.size())) return absl::OkStatus();
  const uint8_t* bytes = reinterpret_cast<const uint8_t*>(text.data());
  size_t at = 0;
  while (at < text.size()) {
    const int length = SequenceLength(bytes + at, text.size() - at);
    if (length == 0) break;
    at += static_cast<size_t>(length);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("text is not valid UTF-8 at byte offset ", at, " (byte 0x",
                   absl::Hex(at < text.size() ? bytes[at] : 0, absl::kZeroPad2),
                   "); convert it to UTF-8 or leave the document out"));
}

absl::StatusOr<absl::string_view> NormalizeNfc(absl::string_view text, std::string* buffer) {
  // U+0300 is the first character that composes with another or has a combining class; its lead
  // byte is 0xCC, and every character above has a lead byte that is no smaller.
  const bool trivial = std::none_of(text.begin(), text.end(),
                                    [](char c) { return static_cast<uint8_t>(c) >= 0xCC; });
  if (trivial) return text;
  utf8proc_uint8_t* result = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &result,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) {
    return absl::InternalError(absl::StrCat("NFC normalisation of a text of ", text.size(),
                                            " bytes failed: ", utf8proc_errmsg(length)));
  }
  buffer->assign(reinterpret_cast<const char*>(result), static_cast<size_t>(length));
  std::free(result);
  return absl::string_view(*buffer);
}

}  // namespace overtok

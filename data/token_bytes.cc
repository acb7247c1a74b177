#include "data/token_bytes.h"

#include <algorithm>

#include "core/check.h"

namespace overtok {
namespace {

bool IsContinuation(unsigned char c) { return c >= 0x80 && c <= 0xBF; }

}  // namespace

int64_t ReplacedUtf8Length(absl::string_view bytes) {
  constexpr int64_t kReplacement = 3;
  int64_t length = 0;
  size_t i = 0;
  while (i < bytes.size()) {
    const auto at = [&bytes](size_t k) {
      return k < bytes.size() ? static_cast<unsigned char>(bytes[k]) : 0;
    };
    const unsigned char lead = at(i);
    size_t size = 0;
    unsigned char low = 0x80, high = 0xBF;  // range of the second byte
    if (lead < 0x80) {
      size = 1;
    } else if (lead >= 0xC2 && lead <= 0xDF) {
      size = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
      size = 3;
      if (lead == 0xE0) low = 0xA0;   // overlong below
      if (lead == 0xED) high = 0x9F;  // surrogates above
    } else if (lead >= 0xF0 && lead <= 0xF4) {
      size = 4;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
    }
    if (size == 0) {  // no character starts like this
      length += kReplacement;
      ++i;
      continue;
    }
    size_t good = 1;
    if (size > 1 && at(i + 1) >= low && at(i + 1) <= high) {
      good = 2;
      while (good < size && IsContinuation(at(i + good))) ++good;
    }
    length += good == size ? static_cast<int64_t>(size) : kReplacement;
    i += good;
  }
  return length;
}

TokenBytes::TokenBytes(const Tokenizer& tokenizer) {
  const int64_t vocabulary = tokenizer.vocab_size();
  exact.resize(static_cast<size_t>(vocabulary));
  levanter.resize(static_cast<size_t>(vocabulary));
  for (int64_t id = 0; id < vocabulary; ++id) {
    const uint32_t token = static_cast<uint32_t>(id);
    if (tokenizer.IsSpecial(token)) continue;
    const absl::string_view bytes = tokenizer.TokenBytes(token);
    const int64_t replaced = ReplacedUtf8Length(bytes);
    OT_CHECK(bytes.size() <= 65535 && replaced <= 65535) << "token " << id << " is too long";
    exact[static_cast<size_t>(id)] = static_cast<uint16_t>(bytes.size());
    levanter[static_cast<size_t>(id)] = static_cast<uint16_t>(replaced);
  }
}

}  // namespace overtok

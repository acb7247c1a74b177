// GPT-2's byte alphabet, as two tables built once.
#include "data/tokenizer/byte_alphabet.h"

#include <algorithm>
#include <array>

namespace overtok {
namespace {

constexpr uint32_t kFirstStandIn = 0x100;
constexpr int kStandIns = 68;
constexpr uint32_t kRunes = kFirstStandIn + kStandIns;

bool StandsForItself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

struct Tables {
  std::array<uint32_t, 256> rune_of_byte{};
  std::array<int, kRunes> byte_of_rune{};  // -1: not in the alphabet
  std::array<uint8_t, 256> order{};

  Tables() {
    byte_of_rune.fill(-1);
    uint32_t next = kFirstStandIn;
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t rune = StandsForItself(byte) ? static_cast<uint32_t>(byte) : next++;
      rune_of_byte[byte] = rune;
      byte_of_rune[rune] = byte;
    }
    int place = 0;
    for (int byte : byte_of_rune) {
      if (byte >= 0) order[place++] = static_cast<uint8_t>(byte);
    }
  }
};

const Tables& GetTables() {
  static const Tables tables;
  return tables;
}

}  // namespace

uint32_t ByteAlphabetRune(uint8_t byte) { return GetTables().rune_of_byte[byte]; }

uint8_t ByteAlphabetOrder(int index) { return GetTables().order[index]; }

std::string ToByteAlphabet(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (char c : bytes) {
    const uint32_t rune = ByteAlphabetRune(static_cast<uint8_t>(c));
    if (rune < 0x80) {
      text.push_back(static_cast<char>(rune));
    } else {
      text.push_back(static_cast<char>(0xC0 | (rune >> 6)));
      text.push_back(static_cast<char>(0x80 | (rune & 0x3F)));
    }
  }
  return text;
}

std::optional<std::string> FromByteAlphabet(absl::string_view text) {
  const Tables& tables = GetTables();
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    uint32_t rune = static_cast<uint8_t>(text[i]);
    if (rune >= 0x80) {
      // The alphabet ends at U+0143: one lead byte and one continuation byte are enough.
      if ((rune & 0xE0) != 0xC0 || i + 1 == text.size()) return std::nullopt;
      const uint32_t low = static_cast<uint8_t>(text[++i]);
      if ((low & 0xC0) != 0x80) return std::nullopt;
      rune = ((rune & 0x1F) << 6) | (low & 0x3F);
    }
    if (rune >= kRunes || tables.byte_of_rune[rune] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(tables.byte_of_rune[rune]));
  }
  return bytes;
}

}  // namespace overtok

// GPT-2's byte alphabet: tokenizer.json writes a token's bytes as one printable character each.
// Bytes 33-126, 161-172 and 174-255 stand for themselves, the other 68 are U+0100 onwards in order.
// Everything past loading works on bytes; this mapping is used by files alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace overtok {

// The character that stands for `byte`.
uint32_t ByteAlphabetRune(uint8_t byte);

// The byte at place `index` (0-255) when the 256 characters are sorted by code point: the order in
// which byte-level vocabularies number their first 256 entries.
uint8_t ByteAlphabetOrder(int index);

// Bytes -> the UTF-8 text of their characters.
std::string ToByteAlphabet(absl::string_view bytes);

// The inverse; nullopt when the text holds a character outside the alphabet.
std::optional<std::string> FromByteAlphabet(absl::string_view text);

}  // namespace overtok

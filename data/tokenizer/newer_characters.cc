// The characters in question and their stand-ins. A text without them is recognised without
// decoding anything but three- and four-byte sequences, and is not copied.
#include "data/tokenizer/newer_characters.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <cstdint>
#include <iterator>

namespace overtok {
namespace {

enum Class : uint8_t { kOther, kLu, kLl, kLm, kLo, kM, kN, kP, kS };

struct Range {
  uint32_t first, last;
  Class now;
};

// U+180E, which lost its place among the spaces in Unicode 6.3, and what Unicode 15.0 to 16.0
// added. tools/check_tokenizers.py compares every code point with Hugging Face's tables.
constexpr Range kRanges[] = {
    {0x897, 0x897, kM},       {0xCF3, 0xCF3, kM},      {0xECE, 0xECE, kM},
    {0x180E, 0x180E, kOther}, {0x1B4E, 0x1B4F, kP},    {0x1B7F, 0x1B7F, kP},
    {0x1C89, 0x1C89, kLu},    {0x1C8A, 0x1C8A, kLl},   {0x2427, 0x2429, kS},
    {0x2FFC, 0x2FFF, kS},     {0x31E4, 0x31E5, kS},    {0x31EF, 0x31EF, kS},
    {0xA7CB, 0xA7CC, kLu},    {0xA7CD, 0xA7CD, kLl},   {0xA7DA, 0xA7DA, kLu},
    {0xA7DB, 0xA7DB, kLl},    {0xA7DC, 0xA7DC, kLu},   {0x105C0, 0x105F3, kLo},
    {0x10D40, 0x10D49, kN},   {0x10D4A, 0x10D4D, kLo}, {0x10D4E, 0x10D4E, kLm},
    {0x10D4F, 0x10D4F, kLo},  {0x10D50, 0x10D65, kLu}, {0x10D69, 0x10D6D, kM},
    {0x10D6E, 0x10D6E, kP},   {0x10D6F, 0x10D6F, kLm}, {0x10D70, 0x10D85, kLl},
    {0x10D8E, 0x10D8F, kS},   {0x10EC2, 0x10EC4, kLo}, {0x10EFC, 0x10EFF, kM},
    {0x1123F, 0x11240, kLo},  {0x11241, 0x11241, kM},  {0x11380, 0x11389, kLo},
    {0x1138B, 0x1138B, kLo},  {0x1138E, 0x1138E, kLo}, {0x11390, 0x113B5, kLo},
    {0x113B7, 0x113B7, kLo},  {0x113B8, 0x113C0, kM},  {0x113C2, 0x113C2, kM},
    {0x113C5, 0x113C5, kM},   {0x113C7, 0x113CA, kM},  {0x113CC, 0x113D0, kM},
    {0x113D1, 0x113D1, kLo},  {0x113D2, 0x113D2, kM},  {0x113D3, 0x113D3, kLo},
    {0x113D4, 0x113D5, kP},   {0x113D7, 0x113D8, kP},  {0x113E1, 0x113E2, kM},
    {0x116D0, 0x116E3, kN},   {0x11B00, 0x11B09, kP},  {0x11BC0, 0x11BE0, kLo},
    {0x11BE1, 0x11BE1, kP},   {0x11BF0, 0x11BF9, kN},  {0x11F00, 0x11F01, kM},
    {0x11F02, 0x11F02, kLo},  {0x11F03, 0x11F03, kM},  {0x11F04, 0x11F10, kLo},
    {0x11F12, 0x11F33, kLo},  {0x11F34, 0x11F3A, kM},  {0x11F3E, 0x11F42, kM},
    {0x11F43, 0x11F4F, kP},   {0x11F50, 0x11F59, kN},  {0x11F5A, 0x11F5A, kM},
    {0x1342F, 0x1342F, kLo},  {0x13440, 0x13440, kM},  {0x13441, 0x13446, kLo},
    {0x13447, 0x13455, kM},   {0x13460, 0x143FA, kLo}, {0x16100, 0x1611D, kLo},
    {0x1611E, 0x1612F, kM},   {0x16130, 0x16139, kN},  {0x16D40, 0x16D42, kLm},
    {0x16D43, 0x16D6A, kLo},  {0x16D6B, 0x16D6C, kLm}, {0x16D6D, 0x16D6F, kP},
    {0x16D70, 0x16D79, kN},   {0x18CFF, 0x18CFF, kLo}, {0x1B132, 0x1B132, kLo},
    {0x1B155, 0x1B155, kLo},  {0x1CC00, 0x1CCEF, kS},  {0x1CCF0, 0x1CCF9, kN},
    {0x1CD00, 0x1CEB3, kS},   {0x1D2C0, 0x1D2D3, kN},  {0x1DF25, 0x1DF2A, kLl},
    {0x1E030, 0x1E06D, kLm},  {0x1E08F, 0x1E08F, kM},  {0x1E4D0, 0x1E4EA, kLo},
    {0x1E4EB, 0x1E4EB, kLm},  {0x1E4EC, 0x1E4EF, kM},  {0x1E4F0, 0x1E4F9, kN},
    {0x1E5D0, 0x1E5ED, kLo},  {0x1E5EE, 0x1E5EF, kM},  {0x1E5F0, 0x1E5F0, kLo},
    {0x1E5F1, 0x1E5FA, kN},   {0x1E5FF, 0x1E5FF, kP},  {0x1F6DC, 0x1F6DC, kS},
    {0x1F774, 0x1F776, kS},   {0x1F77B, 0x1F77F, kS},  {0x1F7D9, 0x1F7D9, kS},
    {0x1F8B2, 0x1F8BB, kS},   {0x1F8C0, 0x1F8C1, kS},  {0x1FA75, 0x1FA77, kS},
    {0x1FA87, 0x1FA89, kS},   {0x1FA8F, 0x1FA8F, kS},  {0x1FAAD, 0x1FAAF, kS},
    {0x1FABB, 0x1FABF, kS},   {0x1FAC6, 0x1FAC6, kS},  {0x1FACE, 0x1FACF, kS},
    {0x1FADA, 0x1FADC, kS},   {0x1FADF, 0x1FADF, kS},  {0x1FAE8, 0x1FAE9, kS},
    {0x1FAF7, 0x1FAF8, kS},   {0x1FBCB, 0x1FBEF, kS},  {0x2B739, 0x2B739, kLo},
    {0x2EBF0, 0x2EE5D, kLo},  {0x31350, 0x323AF, kLo}};

constexpr uint32_t kFirst = kRanges[0].first;

// Characters of Unicode 7 or earlier, by class: one of three bytes, one of four.
struct StandIn {
  uint32_t three, four;
};
constexpr std::array<StandIn, 9> kStandIns = {{{0x2060, 0x1D173},
                                               {0x1E00, 0x10400},
                                               {0x1E01, 0x10428},
                                               {0x1D2C, 0x16B40},
                                               {0x1401, 0x10000},
                                               {0x1AB0, 0x10A01},
                                               {0x1090, 0x104A0},
                                               {0x1360, 0x10100},
                                               {0x2400, 0x10137}}};

// Which blocks of 256 code points hold any of them.
const std::bitset<0x1100>& Blocks() {
  static const std::bitset<0x1100> blocks = [] {
    std::bitset<0x1100> set;
    for (const Range& range : kRanges) {
      for (uint32_t block = range.first >> 8; block <= range.last >> 8; ++block) set.set(block);
    }
    return set;
  }();
  return blocks;
}

const Range* Find(uint32_t code) {
  const Range* range = std::lower_bound(
      std::begin(kRanges), std::end(kRanges), code,
      [](const Range& candidate, uint32_t value) { return candidate.last < value; });
  return range != std::end(kRanges) && range->first <= code ? range : nullptr;
}

uint32_t Continuation(absl::string_view text, size_t at) {
  return static_cast<uint8_t>(text[at]) & 0x3Fu;
}

// The next such character at or after `at`, where a character begins; npos when there is none.
size_t FindNewer(absl::string_view text, size_t at, const Range** range) {
  const std::bitset<0x1100>& blocks = Blocks();
  while (at < text.size()) {
    const uint8_t lead = static_cast<uint8_t>(text[at]);
    if (lead < 0xE0) {  // below U+0800, or a continuation of such
      ++at;
      continue;
    }
    uint32_t code = 0;
    size_t length = 3;
    if (lead < 0xF0) {
      code = (lead & 0x0Fu) << 12 | Continuation(text, at + 1) << 6 | Continuation(text, at + 2);
    } else {
      length = 4;
      code = (lead & 0x07u) << 18 | Continuation(text, at + 1) << 12 |
             Continuation(text, at + 2) << 6 | Continuation(text, at + 3);
    }
    if (code >= kFirst && blocks[code >> 8]) {
      *range = Find(code);
      if (*range != nullptr) return at;
    }
    at += length;
  }
  return absl::string_view::npos;
}

}  // namespace

bool ReplaceNewerCharacters(absl::string_view text, std::string* replaced) {
  // Most text ends here; the loop has no exit inside so that it runs in vector registers.
  uint8_t highest = 0;
  for (char c : text) highest = std::max(highest, static_cast<uint8_t>(c));
  if (highest < 0xE0) return false;
  const Range* range = nullptr;
  size_t at = FindNewer(text, 0, &range);
  if (at == absl::string_view::npos) return false;
  replaced->assign(text.data(), text.size());
  while (at != absl::string_view::npos) {
    const StandIn& stand_in = kStandIns[range->now];
    char* out = &(*replaced)[at];
    if (static_cast<uint8_t>(text[at]) < 0xF0) {
      out[0] = static_cast<char>(0xE0 | stand_in.three >> 12);
      out[1] = static_cast<char>(0x80 | (stand_in.three >> 6 & 0x3F));
      out[2] = static_cast<char>(0x80 | (stand_in.three & 0x3F));
      at += 3;
    } else {
      out[0] = static_cast<char>(0xF0 | stand_in.four >> 18);
      out[1] = static_cast<char>(0x80 | (stand_in.four >> 12 & 0x3F));
      out[2] = static_cast<char>(0x80 | (stand_in.four >> 6 & 0x3F));
      out[3] = static_cast<char>(0x80 | (stand_in.four & 0x3F));
      at += 4;
    }
    at = FindNewer(text, at, &range);
  }
  return true;
}

}  // namespace overtok

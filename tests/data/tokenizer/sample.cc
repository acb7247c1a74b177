#include "tests/data/tokenizer/sample.h"

#include <algorithm>
#include <array>
#include <utility>

#include "data/tokenizer/train.h"
#include "tests/support/temporary_directory.h"

namespace overtok::testing {
namespace {

constexpr std::array<const char*, 36> kWords = {"the",
                                                "of",
                                                "and",
                                                "to",
                                                "in",
                                                "that",
                                                "river",
                                                "mountain",
                                                "paper",
                                                "read",
                                                "reader",
                                                "reading",
                                                "counted",
                                                "countless",
                                                "don't",
                                                "we'll",
                                                "IT'S",
                                                "token",
                                                "tokenizer",
                                                "2024",
                                                "17",
                                                "1,000,000",
                                                "caf\u00e9",
                                                "na\u00efve",
                                                "\u4f60\u597d",
                                                "\u0434\u043e\u043c",
                                                "\u05e9\u05dc\u05d5\u05dd",
                                                "\U0001F600",
                                                "e\u0301tude",
                                                "x=y+z;",
                                                "----",
                                                "(see",
                                                "below)",
                                                "\n",
                                                "\n\n",
                                                "    "};

constexpr std::array<const char*, 24> kSyllables = {
    "an", "ber", "con", "dra", "el",  "fos", "gri", "hal", "in",  "jut", "kom", "lor",
    "mi", "nes", "or",  "pra", "qui", "ran", "sti", "tol", "und", "ver", "wex", "yl"};

struct RuneRange {
  uint32_t first, last;
};
constexpr std::array<RuneRange, 18> kRanges = {{{0x20, 0x7E},
                                                {0x61, 0x7A},
                                                {0x41, 0x5A},
                                                {0x30, 0x39},
                                                {0x09, 0x0D},
                                                {0xA0, 0xFF},
                                                {0x300, 0x36F},
                                                {0x400, 0x4FF},
                                                {0x600, 0x6FF},
                                                {0x900, 0x97F},
                                                {0xE00, 0xE7F},
                                                {0x1800, 0x180F},
                                                {0x2000, 0x206F},
                                                {0x4E00, 0x9FFF},
                                                {0xAC00, 0xD7A3},
                                                {0x10D30, 0x10D49},
                                                {0x1D400, 0x1D7FF},
                                                {0x1F300, 0x1F6FF}}};

void AppendRune(uint32_t rune, std::string* text) {
  if (rune < 0x80) {
    text->push_back(static_cast<char>(rune));
  } else if (rune < 0x800) {
    text->push_back(static_cast<char>(0xC0 | rune >> 6));
    text->push_back(static_cast<char>(0x80 | (rune & 0x3F)));
  } else if (rune < 0x10000) {
    text->push_back(static_cast<char>(0xE0 | rune >> 12));
    text->push_back(static_cast<char>(0x80 | (rune >> 6 & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (rune & 0x3F)));
  } else {
    text->push_back(static_cast<char>(0xF0 | rune >> 18));
    text->push_back(static_cast<char>(0x80 | (rune >> 12 & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (rune >> 6 & 0x3F)));
    text->push_back(static_cast<char>(0x80 | (rune & 0x3F)));
  }
}

}  // namespace

std::string SampleText(size_t bytes, uint32_t seed) {
  // mt19937's numbers are fixed by the standard, its distributions are not.
  std::mt19937 random(seed);
  std::string text;
  while (text.size() < bytes) {
    // Low indices more often, as words are.
    const size_t a = random() % kWords.size(), b = random() % kWords.size();
    text += kWords[std::min(a, b)];
    // Made-up words, so that there is more to learn than the list above.
    if (random() % 2 == 0) {
      text += ' ';
      for (uint32_t i = 1 + random() % 3; i > 0; --i) {
        text += kSyllables[std::min(random() % kSyllables.size(), random() % kSyllables.size())];
      }
    }
    text += random() % 12 == 0 ? ". " : " ";
  }
  return text;
}

std::string MixedText(std::mt19937* random) {
  std::string text;
  const uint32_t parts = 1 + (*random)() % 16;
  for (uint32_t part = 0; part < parts; ++part) {
    const RuneRange range = kRanges[(*random)() % kRanges.size()];
    const auto rune = [&] { return range.first + (*random)() % (range.last - range.first + 1); };
    const uint32_t kind = (*random)() % 10;
    if (kind < 3) {
      text += kWords[(*random)() % kWords.size()];
    } else if (kind == 3) {
      const uint32_t same = rune();
      for (uint32_t i = (*random)() % 150; i > 0; --i) AppendRune(same, &text);
    } else {
      for (uint32_t i = 1 + (*random)() % 8; i > 0; --i) AppendRune(rune(), &text);
    }
  }
  return text;
}

DocumentSource SourceOf(std::vector<std::string> documents) {
  size_t next = 0;
  return [documents = std::move(documents),
          next](std::string* document) mutable -> absl::StatusOr<bool> {
    if (next == documents.size()) return false;
    *document = documents[next++];
    return true;
  };
}

BpeDefinition TrainedDefinition(int64_t vocab_size, const std::string& pattern) {
  TrainOptions options;
  options.vocab_size = vocab_size;
  options.pattern = pattern;
  absl::StatusOr<BpeDefinition> definition =
      TrainBpe(SourceOf({SampleText(40000), SampleText(40000, 2)}), options);
  EXPECT_TRUE(definition.ok()) << definition.status();
  return definition.ok() ? *std::move(definition) : BpeDefinition();
}

std::unique_ptr<BpeTokenizer> MakeTokenizer(BpeDefinition definition,
                                            const TokenizerOptions& options) {
  auto tokenizer = BpeTokenizer::Create(std::move(definition), options);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

std::vector<uint32_t> Ids(const Tokenizer& tokenizer, absl::string_view text, bool parse) {
  std::vector<uint32_t> ids;
  const absl::Status status = tokenizer.Encode(text, parse, &ids);
  EXPECT_TRUE(status.ok()) << status;
  return ids;
}

NaiveBpe::NaiveBpe(const BpeDefinition& definition) : ignore_merges_(definition.ignore_merges) {
  for (const BpeMerge& merge : definition.merges) merges_[{merge.left, merge.right}] = merge;
  for (uint32_t id = 0; id < definition.tokens.size(); ++id) ids_[definition.tokens[id]] = id;
}

std::vector<uint32_t> NaiveBpe::Merge(absl::string_view piece) const {
  const auto whole = ids_.find(std::string(piece));
  if (ignore_merges_ && whole != ids_.end()) return {whole->second};
  std::vector<uint32_t> symbols;
  for (char c : piece) symbols.push_back(ids_.at(std::string(1, c)));
  while (true) {
    const BpeMerge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto it = merges_.find({symbols[i], symbols[i + 1]});
      if (it == merges_.end() || (best != nullptr && it->second.rank >= best->rank)) continue;
      best = &it->second;
      at = i;
    }
    if (best == nullptr) return symbols;
    symbols[at] = best->result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

}  // namespace overtok::testing

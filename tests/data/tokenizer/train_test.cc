// Training: what is learned, in which order, and that it does not depend on threads or order.
#include "data/tokenizer/train.h"

#include <algorithm>
#include <map>

#include "data/tokenizer/tokenizer_json.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;
using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::SampleText;
using ::overtok::testing::SourceOf;
using ::overtok::testing::TrainedDefinition;

absl::StatusOr<BpeDefinition> Train(std::vector<std::string> documents, int64_t vocab_size,
                                    int threads = 1, const std::string& pattern = "llama3") {
  TrainOptions options;
  options.vocab_size = vocab_size;
  options.threads = threads;
  options.pattern = pattern;
  return TrainBpe(SourceOf(std::move(documents)), options);
}

// The same by recounting all pairs at every step.
std::vector<std::string> NaiveTrain(const std::string& text, const std::string& pattern,
                                    size_t merges) {
  PreTokenizerSpec spec;
  spec.splits = {{*ResolvePattern(pattern), false}};
  auto pre_tokenizer = PreTokenizer::Create(spec);
  std::map<std::string, int64_t> counts;
  EXPECT_TRUE(
      pre_tokenizer->Split(text, [&](absl::string_view p) { ++counts[std::string(p)]; }).ok());
  const std::vector<std::string> bytes = TrainedDefinition(258).tokens;
  std::vector<std::string> tokens = bytes;
  std::vector<std::pair<std::vector<uint32_t>, int64_t>> words;
  for (const auto& [word, count] : counts) {
    std::vector<uint32_t> symbols;
    for (char c : word) {
      symbols.push_back(static_cast<uint32_t>(
          std::find(bytes.begin(), bytes.end(), std::string(1, c)) - bytes.begin()));
    }
    words.emplace_back(std::move(symbols), count);
  }
  while (tokens.size() < 256 + merges) {
    std::map<std::pair<uint32_t, uint32_t>, int64_t> pairs;
    for (const auto& [symbols, count] : words) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) pairs[{symbols[i], symbols[i + 1]}] += count;
    }
    std::pair<uint32_t, uint32_t> best;
    int64_t best_count = 0;
    for (const auto& [pair, count] : pairs) {  // ascending, so the first of equals stays
      const std::string joined = tokens[pair.first] + tokens[pair.second];
      if (count <= best_count || std::count(tokens.begin(), tokens.end(), joined) > 0) continue;
      best = pair;
      best_count = count;
    }
    const uint32_t result = static_cast<uint32_t>(tokens.size());
    tokens.push_back(tokens[best.first] + tokens[best.second]);
    for (auto& [symbols, count] : words) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != best.first || symbols[i + 1] != best.second) continue;
        symbols[i] = result;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
  }
  return tokens;
}

TEST(Train, LearnsTheMostFrequentPairs) {
  auto definition = Train({"abab abab abab cd"}, 261);
  OT_ASSERT_OK(definition);
  ASSERT_EQ(definition->tokens.size(), 259u);
  EXPECT_EQ(definition->tokens[256], "ab");    // 6 times
  EXPECT_EQ(definition->tokens[257], "abab");  // 3 times; " ab" only twice
  EXPECT_EQ(definition->tokens[258], " abab");
  ASSERT_EQ(definition->added.size(), 2u);
  EXPECT_EQ(definition->added[0].content, "<|begin_of_text|>");
  EXPECT_EQ(definition->added[0].id, 259u);
  EXPECT_EQ(definition->added[1].content, "<|end_of_text|>");
  EXPECT_EQ(definition->added[1].id, 260u);
}

TEST(Train, AgreesWithRecountingAllPairs) {
  for (const char* pattern : {"llama3", "gpt2"}) {
    std::string text = SampleText(4000, 21) + std::string(301, 'a') + " aaa aaaa aaaaa --- -----";
    auto definition = Train({text}, 258 + 150, 1, pattern);
    OT_ASSERT_OK(definition);
    EXPECT_EQ(definition->tokens, NaiveTrain(text, pattern, 150)) << pattern;
  }
}

TEST(Train, ThreadsAndOrderDoNotMatter) {
  std::vector<std::string> documents;
  for (uint32_t i = 0; i < 8; ++i) documents.push_back(SampleText(400000, i));
  auto one = Train(documents, 700, 1);
  OT_ASSERT_OK(one);
  std::reverse(documents.begin(), documents.end());
  auto four = Train(documents, 700, 4);
  OT_ASSERT_OK(four);
  EXPECT_EQ(HashDefinition(*one), HashDefinition(*four));
  EXPECT_EQ(*FormatTokenizerJson(*one), *FormatTokenizerJson(*four));
}

TEST(Train, EachEntryIsReachedByItsOwnMerge) {
  const BpeDefinition definition = TrainedDefinition(600);
  const auto tokenizer = MakeTokenizer(definition);
  ASSERT_EQ(definition.merges.size(), 600u - 258u);
  for (size_t i = 0; i < definition.merges.size(); ++i) {
    EXPECT_EQ(definition.merges[i].rank, i);
    EXPECT_EQ(definition.merges[i].result, 256 + i);
  }
  // Shorter than one id a byte, by far.
  const std::string text = SampleText(40000);
  EXPECT_LT(Ids(*tokenizer, text).size() * 2, text.size());
}

TEST(Train, MistakesAreNamed) {
  OT_EXPECT_ERROR(Train({"abcabc"}, 257), "expected 258");
  OT_EXPECT_ERROR(Train({"ab ab"}, 1000), "gives 259 entries");
  OT_EXPECT_ERROR(Train({}, 300), "gives 258 entries");
  OT_EXPECT_ERROR(Train({"fine", "bad \xFF"}, 260), "document 2");
  OT_EXPECT_ERROR(Train({"abc"}, 260, 1, "(a"), "does not compile");
  OT_EXPECT_ERROR(Train({"abc"}, 260, 1, "\\h+"), "\\h");
}

}  // namespace
}  // namespace overtok

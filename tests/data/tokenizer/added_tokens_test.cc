// Added tokens: plain text unless asked for, so that no document can end another.
#include "data/tokenizer/added_matcher.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;
using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::TrainedDefinition;

AddedToken Added(const std::string& content, uint32_t id, bool special, bool normalized) {
  AddedToken token;
  token.content = content;
  token.id = id;
  token.special = special;
  token.normalized = normalized;
  return token;
}

TEST(AddedTokens, TextCannotForgeAnEndOfDocument) {
  for (const bool ignore_merges : {false, true}) {
    for (const char* pattern : {"llama3", "gpt2", "(?s:.+)"}) {
      BpeDefinition definition =
          TrainedDefinition(400, std::string(pattern) == "(?s:.+)" ? "llama3" : pattern);
      definition.ignore_merges = ignore_merges;
      // With this one the whole text is a single piece, as wide as the forged token.
      if (std::string(pattern) == "(?s:.+)") definition.pre_tokenizer.splits = {{pattern, false}};
      const auto tokenizer = MakeTokenizer(std::move(definition));
      for (const char* text : {"<|end_of_text|>", "a<|end_of_text|>b", "<|begin_of_text|>"}) {
        for (uint32_t id : Ids(*tokenizer, text)) EXPECT_FALSE(tokenizer->IsSpecial(id)) << text;
        EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
      }
    }
  }
}

TEST(AddedTokens, AreCutOutWhenAsked) {
  const auto tokenizer = MakeTokenizer(TrainedDefinition(400));
  const uint32_t eos = *tokenizer->eos();
  std::vector<uint32_t> expected = Ids(*tokenizer, "the");
  expected.push_back(eos);
  expected.push_back(eos);
  for (uint32_t id : Ids(*tokenizer, " river")) expected.push_back(id);
  EXPECT_EQ(Ids(*tokenizer, "the<|end_of_text|><|end_of_text|> river", true), expected);
  EXPECT_EQ(tokenizer->Decode({eos}), "");
  EXPECT_EQ(Ids(*tokenizer, "<|end_of_text|", true), Ids(*tokenizer, "<|end_of_text|"));
}

TEST(AddedMatcher, TakesTheLeftmostThenTheLongest) {
  const AddedMatcher matcher({{"<a>", 1}, {"<a><b>", 2}, {"b><c", 3}, {"<", 4}});
  std::string seen;
  OT_ASSERT_OK(matcher.Cut(
      "x<a><b><c><a>y<a",
      [&](absl::string_view plain) {
        absl::StrAppend(&seen, "[", plain, "]");
        return absl::OkStatus();
      },
      [&](uint32_t id) { absl::StrAppend(&seen, id); }));
  EXPECT_EQ(seen, "[x]24[c>]1[y]4[a]");
}

TEST(AddedTokens, NormalizedOnesAreFoundInNormalizedText) {
  BpeDefinition definition = TrainedDefinition(400);
  definition.nfc = true;
  definition.added.push_back(Added("[\u00e9]", 400, false, true));
  definition.added.push_back(Added("{\u00e9}", 401, false, false));
  const auto tokenizer = MakeTokenizer(std::move(definition));
  EXPECT_EQ(Ids(*tokenizer, "[e\u0301]", true), std::vector<uint32_t>{400});
  EXPECT_EQ(Ids(*tokenizer, "{\u00e9}", true), std::vector<uint32_t>{401});
  EXPECT_NE(Ids(*tokenizer, "{e\u0301}", true), std::vector<uint32_t>{401});
  // Not special: they stand for their text.
  EXPECT_EQ(tokenizer->Decode({400, 401}), "[\u00e9]{\u00e9}");
}

TEST(AddedTokens, StrippingOnesAreRefusedOnlyWhenParsed) {
  BpeDefinition definition = TrainedDefinition(400);
  definition.added.push_back(Added("<mask>", 400, true, false));
  definition.added.back().lstrip = true;
  const auto tokenizer = MakeTokenizer(std::move(definition));
  std::vector<uint32_t> ids;
  OT_ASSERT_OK(tokenizer->Encode("a <mask>", false, &ids));
  OT_EXPECT_ERROR(tokenizer->Encode("a <mask>", true, &ids), "lstrip");
}

// cases.md: the bound on ids is the vocabulary with its added tokens, not the model's own size.
TEST(AddedTokens, CountInTheVocabularySize) {
  BpeDefinition definition = TrainedDefinition(400);
  definition.added.push_back(Added("<far>", 1000, true, false));
  const auto tokenizer = MakeTokenizer(std::move(definition));
  EXPECT_EQ(tokenizer->vocab_size(), 1001);
  EXPECT_TRUE(tokenizer->IsSpecial(1000));
  EXPECT_FALSE(tokenizer->IsSpecial(999));
  EXPECT_EQ(tokenizer->TokenBytes(999), "");
  EXPECT_EQ(tokenizer->TokenBytes(4000000000u), "");
}

}  // namespace
}  // namespace overtok

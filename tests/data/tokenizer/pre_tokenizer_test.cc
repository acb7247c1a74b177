// How text falls into pieces.
#include "data/tokenizer/pre_tokenizer.h"

#include "data/tokenizer/newer_characters.h"
#include "data/tokenizer/portable_pattern.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Pieces(const PreTokenizerSpec& spec, absl::string_view text) {
  std::vector<std::string> pieces;
  auto pre_tokenizer = PreTokenizer::Create(spec);
  EXPECT_TRUE(pre_tokenizer.ok()) << pre_tokenizer.status();
  if (!pre_tokenizer.ok()) return pieces;
  const absl::Status status = pre_tokenizer->Split(
      text, [&](absl::string_view piece) { pieces.emplace_back(piece.data(), piece.size()); });
  EXPECT_TRUE(status.ok()) << status;
  return pieces;
}

std::vector<std::string> Pieces(absl::string_view pattern, absl::string_view text) {
  auto expression = ResolvePattern(pattern);
  EXPECT_TRUE(expression.ok());
  PreTokenizerSpec spec;
  spec.splits.push_back({*expression, false});
  return Pieces(spec, text);
}

TEST(PreTokenizer, Llama3) {
  EXPECT_THAT(Pieces("llama3", "Don't STOP'LL 12345 x=y;\n\n  end \t"),
              ElementsAre("Don", "'t", " STOP", "'LL", " ", "123", "45", " x", "=y", ";\n\n", " ",
                          " end", " \t"));
  EXPECT_THAT(Pieces("llama3", "it\u2019s \u00e9t\u00e9\r\n\r\n..."),
              ElementsAre("it", "\u2019s", " \u00e9t\u00e9", "\r\n\r\n", "..."));
  // The long s folds to s.
  EXPECT_THAT(Pieces("llama3", "a'\u017f"), ElementsAre("a", "'\u017f"));
}

TEST(PreTokenizer, Qwen2SplitsDigitsAndGpt2KeepsThem) {
  EXPECT_THAT(Pieces("qwen2", "a 123"), ElementsAre("a", " ", "1", "2", "3"));
  EXPECT_THAT(Pieces("gpt2", "a 12345's\n\nb"), ElementsAre("a", " 12345", "'s", "\n", "\n", "b"));
}

TEST(PreTokenizer, SpacesAreUnicodesOfToday) {
  // A no-break space is a space, the Mongolian vowel separator no longer is.
  EXPECT_THAT(Pieces("gpt2", "a\u00a0\u00a0b"), ElementsAre("a", "\u00a0", "\u00a0", "b"));
  EXPECT_THAT(Pieces("llama3", "\t\u180e's"), ElementsAre("\t", "\u180e'", "s"));
  // Garay digits are digits since Unicode 16: three to a piece, and no symbol in front of letters.
  const std::string digit = "\U00010D41";
  EXPECT_THAT(Pieces("llama3", digit + digit + digit + digit + "x"),
              ElementsAre(digit + digit + digit, digit, "x"));
}

TEST(NewerCharacters, StandInsKeepEveryOffset) {
  std::string replaced;
  EXPECT_FALSE(ReplaceNewerCharacters("plain \u00e9 \u4f60\u597d \U0001F600", &replaced));
  EXPECT_FALSE(ReplaceNewerCharacters("", &replaced));
  const std::string text = "\u4f60\u180e-\U00010D41!\u0897\U000323AF";
  ASSERT_TRUE(ReplaceNewerCharacters(text, &replaced));
  ASSERT_EQ(replaced.size(), text.size());
  EXPECT_EQ(replaced, "\u4f60\u2060-\U000104A0!\u1AB0\U00010000");
}

TEST(PreTokenizer, EveryByteIsInExactlyOnePiece) {
  std::mt19937 random(11);
  const std::vector<std::string> patterns = {"gpt2", "llama3", "qwen2", "[aeiou]+", "x*", "(?=t)"};
  for (int i = 0; i < 500; ++i) {
    const std::string text = testing::MixedText(&random);
    for (const std::string& pattern : patterns) {
      std::string joined;
      for (const std::string& piece : Pieces(pattern, text)) {
        EXPECT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text) << pattern;
    }
  }
}

TEST(PreTokenizer, GapsArePieces) {
  EXPECT_THAT(Pieces("[0-9]", "ab1c23"), ElementsAre("ab", "1", "c", "2", "3"));
  EXPECT_THAT(Pieces("(?=b)", "abcab"), ElementsAre("a", "bca", "b"));
}

TEST(PreTokenizer, StagesFollowEachOther) {
  PreTokenizerSpec spec;
  spec.splits = {{"a.c", true}, {"[0-9]", false}};
  spec.add_prefix_space = true;
  spec.gpt2_split = true;
  // The plain string matches itself alone; every piece without a space in front gets one.
  EXPECT_THAT(Pieces(spec, "x1 y!abca.c"),
              ElementsAre(" x", " 1", " y", "!", "abc", " a", ".", "c"));
}

TEST(PreTokenizer, LongRunsOfSpacesWork) {
  const std::string spaces(300000, ' ');
  EXPECT_THAT(Pieces("llama3", spaces + "x"), ElementsAre(spaces.substr(1), " x"));
}

TEST(PreTokenizer, BadPatternsAreNamed) {
  PreTokenizerSpec spec;
  spec.splits = {{"(a", false}};
  OT_EXPECT_ERROR(PreTokenizer::Create(spec), "does not compile");
  OT_EXPECT_ERROR(ResolvePattern(""), "gpt2, cl100k, llama3, qwen2");
}

TEST(PortablePattern, RefusesWhatTheTwoEnginesReadDifferently) {
  for (const char* name : {"gpt2", "cl100k", "llama3", "qwen2"}) {
    OT_ASSERT_OK(CheckPortablePattern(*ResolvePattern(name)));
  }
  OT_ASSERT_OK(CheckPortablePattern("[^\\s]+|\\p{N}{1,3}|[]x]|(?:ab)+|(?!a)|\\p{L}+|[!\"#$%^]"));
  OT_EXPECT_ERROR(CheckPortablePattern("\\p{N}{1,3}+"), "}+");
  OT_EXPECT_ERROR(CheckPortablePattern("\\h+"), "\\h");
  OT_EXPECT_ERROR(CheckPortablePattern("\\s+$"), "$");
  OT_EXPECT_ERROR(CheckPortablePattern("(?m:a.b)"), "(?m");
  OT_EXPECT_ERROR(CheckPortablePattern("[a[b]]"), "[ inside");
  OT_EXPECT_ERROR(CheckPortablePattern("[a-z&&[aeiou]]"), "&&");
}

}  // namespace
}  // namespace overtok

// tiktoken rank files.
#include "data/tokenizer/rank_file.h"

#include "absl/strings/escaping.h"
#include "core/io/files.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/truncate.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;
using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::MixedText;
using ::overtok::testing::TemporaryDirectory;
using ::overtok::testing::TrainedDefinition;

std::string RankText(const std::vector<std::string>& tokens) {
  std::string text;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    absl::StrAppend(&text, absl::Base64Escape(tokens[rank]), " ", rank, "\n");
  }
  return text;
}

TEST(RankFile, EveryPairThatJoinsToATokenMerges) {
  std::vector<std::string> tokens = TrainedDefinition(258).tokens;  // the bytes
  for (const char* token : {"bc", "ab", "abc"}) tokens.push_back(token);
  auto definition = ParseRankFile("r", RankText(tokens), "llama3", {});
  OT_ASSERT_OK(definition);
  // "abc" is reached from both sides, at one rank.
  ASSERT_EQ(definition->merges.size(), 4u);
  EXPECT_EQ(definition->merges[2].rank, 258u);
  EXPECT_EQ(definition->merges[3].rank, 258u);
  const auto tokenizer = MakeTokenizer(*definition);
  EXPECT_EQ(Ids(*tokenizer, "abc"), std::vector<uint32_t>{258});
  EXPECT_EQ(Ids(*tokenizer, "xabcx"),
            (std::vector<uint32_t>{Ids(*tokenizer, "x")[0], 258, Ids(*tokenizer, "x")[0]}));
  EXPECT_EQ(tokenizer->vocab_size(), 259);
}

TEST(RankFile, AgreesWithItsTokenizerJson) {
  const TemporaryDirectory directory;
  const std::vector<std::string> tokens = TrainedDefinition(600).tokens;
  const std::string ranks = directory.File("ranks"), json = directory.File("json");
  OT_ASSERT_OK(WriteFileAtomically(ranks, RankText(tokens)));
  TokenizerOptions options;
  options.pattern = "llama3";
  options.specials = {"<|begin_of_text|>", "<|end_of_text|>"};
  auto from_ranks = LoadTokenizer(ranks, options);
  OT_ASSERT_OK(from_ranks);
  auto definition = ParseRankFile("r", RankText(tokens), options.pattern, options.specials);
  OT_ASSERT_OK(definition);
  auto text = FormatTokenizerJson(*definition);
  OT_ASSERT_OK(text);
  OT_ASSERT_OK(WriteFileAtomically(json, *text));
  auto from_json = LoadTokenizer(json, {});
  OT_ASSERT_OK(from_json);
  EXPECT_EQ((*from_json)->bos(), (*from_ranks)->bos());
  EXPECT_EQ((*from_json)->eos(), 599u);
  std::mt19937 random(17);
  for (int i = 0; i < 500; ++i) {
    const std::string mixed = MixedText(&random);
    ASSERT_EQ(Ids(**from_json, mixed), Ids(**from_ranks, mixed));
  }
}

TEST(RankFile, SpecialTokensAreNumberedOrPinned) {
  const std::string text = RankText(TrainedDefinition(258).tokens);
  auto definition = ParseRankFile("r", text, "gpt2", {"<a>", "<b>=300", "<c>", "x=y", "<d>=7x"});
  OT_ASSERT_OK(definition);
  std::vector<std::pair<std::string, uint32_t>> added;
  for (const AddedToken& token : definition->added) added.emplace_back(token.content, token.id);
  EXPECT_EQ(added, (std::vector<std::pair<std::string, uint32_t>>{
                       {"<a>", 256}, {"<b>", 300}, {"<c>", 301}, {"x=y", 302}, {"<d>=7x", 303}}));
  OT_EXPECT_ERROR(ParseRankFile("r", text, "gpt2", {"<a>", "<b>=256"}), "share the id 256");
  OT_EXPECT_ERROR(ParseRankFile("r", text, "gpt2", {"<b>=12"}), "belongs to another token");
  OT_EXPECT_ERROR(ParseRankFile("r", text, "gpt2", {"=300"}), "no text");
  OT_EXPECT_ERROR(ParseRankFile("r", text, "gpt2", {"<b>=99999999999"}), "largest id");
}

TEST(RankFile, MistakesAreNamedWithTheirLine) {
  const std::string text = RankText(TrainedDefinition(258).tokens);
  OT_EXPECT_ERROR(ParseRankFile("r", text, "", {}), "--pattern");
  OT_EXPECT_ERROR(ParseRankFile("r", text + "YWI= 5\n", "gpt2", {}),
                  "r:257: rank 5 is given twice");
  OT_EXPECT_ERROR(ParseRankFile("r", text + "YWI=\n", "gpt2", {}), "r:257");
  OT_EXPECT_ERROR(ParseRankFile("r", text + "YWI= 0x10\n", "gpt2", {}), "r:257");
  OT_EXPECT_ERROR(ParseRankFile("r", text + "YWI= -1\n", "gpt2", {}), "r:257");
  OT_EXPECT_ERROR(ParseRankFile("r", text + "YWI= 99999999\n", "gpt2", {}), "largest id");
  OT_EXPECT_ERROR(ParseRankFile("r", text + "YQ== 256\n", "gpt2", {}), "the same bytes");
  OT_EXPECT_ERROR(ParseRankFile("r", "YWI= 0\n", "gpt2", {}), "no token for the byte");
  EXPECT_TRUE(LooksLikeRankFile("YWI= 0\r\nYQ== 1\r\n"));
  EXPECT_FALSE(LooksLikeRankFile("once upon a time\n"));
}

}  // namespace
}  // namespace overtok

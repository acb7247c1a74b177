// A vocabulary cut down is the vocabulary that training would have stopped at.
#include "data/tokenizer/truncate.h"

#include "data/tokenizer/tokenizer_json.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;
using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::MixedText;
using ::overtok::testing::SampleText;
using ::overtok::testing::TrainedDefinition;

TEST(Truncate, EqualsTrainingToThatSize) {
  const BpeDefinition big = TrainedDefinition(600);
  auto small = TruncateDefinition(big, 400);
  OT_ASSERT_OK(small);
  EXPECT_EQ(*FormatTokenizerJson(*small), *FormatTokenizerJson(TrainedDefinition(402)));
  ASSERT_EQ(small->added.size(), 2u);
  EXPECT_EQ(small->added[0].content, big.added[0].content);
  EXPECT_EQ(small->added[0].id, 400u);
  EXPECT_EQ(small->added[1].id, 401u);
}

TEST(Truncate, StoredIdsConvertWithoutTheirText) {
  // expand[t]: token t of the big vocabulary, encoded on its own by the small one's merges.
  const BpeDefinition big = TrainedDefinition(600);
  auto cut = TruncateDefinition(big, 350);
  OT_ASSERT_OK(cut);
  const auto large = MakeTokenizer(big), small = MakeTokenizer(*cut);
  const BpeModel merges(*cut);
  std::vector<std::vector<uint32_t>> expand(big.tokens.size());
  for (size_t id = 0; id < expand.size(); ++id) {
    merges.EncodePiece(big.tokens[id], &expand[id]);
    if (id < 350) {
      EXPECT_EQ(expand[id], std::vector<uint32_t>{static_cast<uint32_t>(id)});
    }
  }
  std::mt19937 random(23);
  for (int i = 0; i < 500; ++i) {
    const std::string text = MixedText(&random) + SampleText(300, static_cast<uint32_t>(i));
    std::vector<uint32_t> converted;
    for (uint32_t id : Ids(*large, text)) {
      converted.insert(converted.end(), expand[id].begin(), expand[id].end());
    }
    ASSERT_EQ(converted, Ids(*small, text));
  }
}

TEST(Truncate, SpecialTokensInFrontMoveBehind) {
  BpeDefinition shifted = TrainedDefinition(400);
  // As some trainers number them: special tokens 0 and 1, then the model.
  shifted.tokens.insert(shifted.tokens.begin(), 2, std::string());
  for (BpeMerge& merge : shifted.merges) {
    merge.left += 2;
    merge.right += 2;
    merge.result += 2;
  }
  shifted.added[0].id = 0;
  shifted.added[1].id = 1;
  OT_ASSERT_OK(FinishDefinition(&shifted));
  auto small = TruncateDefinition(shifted, 300);
  OT_ASSERT_OK(small);
  EXPECT_EQ(*FormatTokenizerJson(*small), *FormatTokenizerJson(TrainedDefinition(302)));
  OT_EXPECT_ERROR(FormatTokenizerJson(shifted), "without gaps");
}

TEST(Truncate, MistakesAreNamed) {
  const BpeDefinition big = TrainedDefinition(400);
  OT_EXPECT_ERROR(TruncateDefinition(big, 255), "expected 256");
  OT_EXPECT_ERROR(TruncateDefinition(big, 399), "to 398");
  OT_ASSERT_OK(TruncateDefinition(big, 256));
  OT_ASSERT_OK(TruncateDefinition(big, 398));
  BpeDefinition shuffled = big;
  // Two entries with their ids exchanged: ids are no longer ranks.
  const uint32_t a = 300, b = 310;
  std::swap(shuffled.tokens[a], shuffled.tokens[b]);
  for (BpeMerge& merge : shuffled.merges) {
    for (uint32_t* id : {&merge.left, &merge.right, &merge.result}) {
      *id = *id == a ? b : (*id == b ? a : *id);
    }
  }
  OT_ASSERT_OK(FinishDefinition(&shuffled));
  OT_EXPECT_ERROR(TruncateDefinition(shuffled, 280), "not in the order of its merges");
}

}  // namespace
}  // namespace overtok

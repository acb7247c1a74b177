// Merging: against the plain definition of BPE, on pieces below and above the length where the
// method changes, and in time.
#include "data/tokenizer/bpe_model.h"

#include <chrono>
#include <thread>

#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::Ids;
using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::MixedText;
using ::overtok::testing::NaiveBpe;
using ::overtok::testing::SampleText;
using ::overtok::testing::TrainedDefinition;

TEST(BpeModel, AgreesWithTheDefinitionOfBpe) {
  for (const bool ignore_merges : {false, true}) {
    BpeDefinition definition = TrainedDefinition(500);
    definition.ignore_merges = ignore_merges;
    const BpeModel model(definition);
    const NaiveBpe naive(definition);
    const std::string text = SampleText(6000, 7);
    // Pieces of all lengths, across words: both sides of the change at 64 symbols.
    for (size_t length = 1; length < 200; ++length) {
      for (size_t at = 0; at + length < text.size(); at += 1501) {
        const absl::string_view piece = absl::string_view(text).substr(at, length);
        std::vector<uint32_t> ids;
        model.EncodePiece(piece, &ids);
        ASSERT_EQ(ids, naive.Merge(piece)) << "length " << length << " at " << at;
      }
    }
  }
}

TEST(BpeModel, IgnoreMergesTakesAWholePieceThatMergesCannotReach) {
  BpeDefinition definition = TrainedDefinition(300);
  const uint32_t whole = static_cast<uint32_t>(definition.tokens.size());
  definition.tokens.push_back("zqzqz");  // no merge makes it
  definition.added.clear();
  definition.ignore_merges = true;
  std::vector<uint32_t> ids;
  BpeModel(definition).EncodePiece("zqzqz", &ids);
  EXPECT_EQ(ids, std::vector<uint32_t>{whole});
  definition.ignore_merges = false;
  ids.clear();
  BpeModel(definition).EncodePiece("zqzqz", &ids);
  EXPECT_EQ(ids.size(), 5u);
}

TEST(BpeModel, LongPiecesAreNotQuadratic) {
  const auto tokenizer = MakeTokenizer(TrainedDefinition(500));
  const auto start = std::chrono::steady_clock::now();
  for (const char* unit : {"-", "the", "\u4f60", "  "}) {
    std::string text;
    while (text.size() < 1000000) text += unit;
    EXPECT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
  }
  // Quadratic time would be hours; this takes under a second.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(BpeTokenizer, DecodingGivesTheTextBack) {
  const auto tokenizer = MakeTokenizer(TrainedDefinition(600));
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = MixedText(&random);
    ASSERT_EQ(tokenizer->Decode(Ids(*tokenizer, text)), text);
  }
}

TEST(BpeTokenizer, AnswersFromTheCacheAreThoseOfTheMerges) {
  // Two tokenizers take turns on one thread with the same pieces, so that mixed-up caches show.
  const BpeDefinition big = TrainedDefinition(600), small = TrainedDefinition(300);
  const auto big_tokenizer = MakeTokenizer(big), small_tokenizer = MakeTokenizer(small);
  const NaiveBpe big_naive(big), small_naive(small);
  auto pre_tokenizer = PreTokenizer::Create(big.pre_tokenizer);
  OT_ASSERT_OK(pre_tokenizer);
  const auto expect = [&](const BpeTokenizer& tokenizer, const NaiveBpe& naive,
                          const std::string& text) {
    std::vector<uint32_t> expected;
    OT_ASSERT_OK(pre_tokenizer->Split(text, [&](absl::string_view piece) {
      const std::vector<uint32_t> ids = naive.Merge(piece);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }));
    ASSERT_EQ(Ids(tokenizer, text), expected);
  };
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::string text = MixedText(&random) + SampleText(200, 5);
    expect(*big_tokenizer, big_naive, text);
    expect(*small_tokenizer, small_naive, text);
  }
}

TEST(BpeTokenizer, EncodesFromManyThreadsAtOnce) {
  const auto tokenizer = MakeTokenizer(TrainedDefinition(500));
  const std::string text = SampleText(50000, 9);
  const std::vector<uint32_t> expected = Ids(*tokenizer, text);
  std::vector<std::vector<uint32_t>> results(4);
  std::vector<std::thread> threads;
  threads.reserve(results.size());
  for (std::vector<uint32_t>& result : results) {
    threads.emplace_back([&] { result = Ids(*tokenizer, text); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<uint32_t>& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace overtok

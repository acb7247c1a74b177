// Shards of a small vocabulary made from shards of a big one, against tokenizing the text anew.
#include "data/text/shrink_corpus.h"

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "data/shard.h"
#include "data/text/small_vocabulary.h"
#include "data/text/tokenize.h"
#include "data/tokenizer/tokenizer_json.h"
#include "data/tokenizer/truncate.h"
#include "tests/data/fixtures.h"
#include "tests/data/tokenizer/sample.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::overtok::testing::MakeTokenizer;
using ::overtok::testing::MixedText;
using ::overtok::testing::NaiveBpe;
using ::overtok::testing::SampleText;
using ::overtok::testing::TrainedDefinition;

class ShrinkTest : public ::testing::Test {
 protected:
  // Documents of words, of scripts, with special tokens' texts, and one without ordinary words.
  void WriteTexts() {
    std::mt19937 random(41);
    std::ofstream file(directory_.File("text.jsonl"));
    for (uint32_t i = 0; i < 60; ++i) {
      std::string text = i % 3 == 0 ? SampleText(400, i) : MixedText(&random) + SampleText(90, i);
      if (i % 4 == 1) text += "<|end_of_text|> and on<|begin_of_text|>";
      if (i == 7) text = std::string(300, '=');
      file << nlohmann::json{{"text", text}}.dump() << "\n";
    }
  }
  absl::Status Tokenize(const Tokenizer& tokenizer, const DocumentForm& form,
                        const std::string& out) {
    TokenizeOptions options;
    options.files = {directory_.File("text.jsonl")};
    options.out = out;
    options.encode.tokenizer = &tokenizer;
    options.encode.threads = 1;
    options.show_progress = false;
    OT_ASSIGN_OR_RETURN(options.encode.identity, IdentityOf(tokenizer, form));
    return TokenizeFiles(options).status();
  }
  ShrinkOptions Options(const BpeDefinition& tokenizer, int64_t keep) {
    ShrinkOptions options;
    options.tokenizer = tokenizer;
    options.keep = keep;
    options.shards = {directory_.File("big")};
    options.out = directory_.File("small");
    options.check = true;
    options.show_progress = false;
    return options;
  }
  // All ids of a corpus.
  std::vector<uint32_t> Ids(const std::string& path) {
    const auto corpus = Corpus::Open({path});
    EXPECT_TRUE(corpus.ok()) << corpus.status();
    std::vector<uint32_t> ids(static_cast<size_t>((*corpus)->tokens()));
    EXPECT_TRUE((*corpus)->Read(0, (*corpus)->tokens(), ids.data()).ok());
    return ids;
  }
  // Shrinks what `full` made of the texts and compares it with what its truncation makes of them.
  void ExpectEqualToTokenizing(const BpeDefinition& full, int64_t keep, const DocumentForm& form) {
    const std::string big = directory_.File("big"), small = directory_.File("small"),
                      again = directory_.File("again");
    for (const std::string& path : {big, small, again}) ASSERT_TRUE(RemoveTree(path).ok());
    OT_ASSERT_OK(Tokenize(*MakeTokenizer(full), form, big));
    const auto result = ShrinkCorpus(Options(full, keep));
    OT_ASSERT_OK(result);
    EXPECT_EQ(result->documents, 60);
    EXPECT_EQ(result->different_documents, 0) << result->first_difference;

    // The tokenizer as training and evaluation load it.
    const auto tokenizer = LoadTokenizer(small + "/tokenizer.json", TokenizerOptions());
    OT_ASSERT_OK(tokenizer);
    const auto cut = TruncateDefinition(full, keep);
    OT_ASSERT_OK(cut);
    EXPECT_EQ(*ReadFile(small + "/tokenizer.json"), *FormatTokenizerJson(*cut));
    OT_ASSERT_OK(Tokenize(**tokenizer, form, again));
    const auto a = Corpus::Open({small}), b = Corpus::Open({again});
    OT_ASSERT_OK(a);
    OT_ASSERT_OK(b);
    EXPECT_EQ(DescribeDifference((*a)->identity(), (*b)->identity()), "");
    EXPECT_EQ((*a)->content_hash(), (*b)->content_hash());
    EXPECT_EQ(Ids(small), Ids(again));
    const Shard& converted = *(*a)->shards()[0];
    const Shard& encoded = *(*b)->shards()[0];
    EXPECT_EQ(converted.document_offsets(), encoded.document_offsets());
    EXPECT_EQ(converted.document_text_bytes(), encoded.document_text_bytes());
    EXPECT_EQ(result->tokens, (*b)->tokens());
    EXPECT_EQ(result->vocab_size, (*b)->identity().vocab_size);
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(ShrinkTest, EqualsTokenizingTheTextWithTheSmallTokenizer) {
  WriteTexts();
  const BpeDefinition full = TrainedDefinition(600);
  DocumentForm form;
  for (const int64_t keep : {256, 300, 450, 598}) {
    SCOPED_TRACE(keep);
    ExpectEqualToTokenizing(full, keep, form);
  }
}

TEST_F(ShrinkTest, KeepsTheFormOfDocuments) {
  WriteTexts();
  const BpeDefinition full = TrainedDefinition(500);
  for (const DocumentForm& form :
       {DocumentForm{false, false, true, false}, DocumentForm{true, true, true, false},
        DocumentForm{true, false, true, true}, DocumentForm{false, false, false, false}}) {
    SCOPED_TRACE(form.ToString());
    ExpectEqualToTokenizing(full, 320, form);
  }
}

TEST_F(ShrinkTest, WholePieceTokensAndNormalization) {
  WriteTexts();
  BpeDefinition full = TrainedDefinition(500, "gpt2");
  full.ignore_merges = true;
  full.nfc = true;
  ExpectEqualToTokenizing(full, 350, DocumentForm());
}

TEST_F(ShrinkTest, SpecialTokensWithGapsMoveBehindTheTokensThatStay) {
  WriteTexts();
  BpeDefinition full = TrainedDefinition(500);
  full.added[0].id = 70'000;  // u32 shards; the small ones are u16
  full.added[1].id = 70'005;
  OT_ASSERT_OK(FinishDefinition(&full));
  ExpectEqualToTokenizing(full, 300, DocumentForm());
  const auto vocabulary = SmallVocabulary::Create(full, 300, "x");
  OT_ASSERT_OK(vocabulary);
  EXPECT_EQ(vocabulary->Expand(70'000), absl::MakeConstSpan({uint32_t{300}}));
  EXPECT_EQ(vocabulary->Expand(70'005), absl::MakeConstSpan({uint32_t{301}}));
  for (const uint32_t none : {498u, 69'999u, 70'004u, 70'006u, 0xFFFFFFFFu}) {
    EXPECT_TRUE(vocabulary->Expand(none).empty()) << none;
  }
}

TEST_F(ShrinkTest, ExpansionsAreTheSmallMergesOfTheTokensBytes) {
  const BpeDefinition full = TrainedDefinition(600);
  const auto vocabulary = SmallVocabulary::Create(full, 333, "x");
  OT_ASSERT_OK(vocabulary);
  const NaiveBpe naive(vocabulary->definition());
  for (uint32_t id = 0; id < 598; ++id) {
    const absl::Span<const uint32_t> expansion = vocabulary->Expand(id);
    const std::vector<uint32_t> expected =
        id < 333 ? std::vector<uint32_t>{id} : naive.Merge(full.tokens[id]);
    EXPECT_EQ(std::vector<uint32_t>(expansion.begin(), expansion.end()), expected) << id;
  }
}

// An entry that stays is itself even where no merge makes it, so that no text ever encodes to it.
TEST_F(ShrinkTest, EntriesWithoutMergesStay) {
  BpeDefinition full = TrainedDefinition(400);
  std::erase_if(full.merges, [](const BpeMerge& merge) { return merge.result == 270; });
  OT_ASSERT_OK(FinishDefinition(&full));
  const auto vocabulary = SmallVocabulary::Create(full, 300, "x");
  OT_ASSERT_OK(vocabulary);
  EXPECT_EQ(vocabulary->Expand(270), absl::MakeConstSpan({uint32_t{270}}));
}

// Ids that encoding would not have made: each one expands by itself, and the check says so.
TEST_F(ShrinkTest, OtherIdsExpandOneByOne) {
  const BpeDefinition full = TrainedDefinition(600);
  const auto tokenizer = MakeTokenizer(full);
  const auto identity = IdentityOf(*tokenizer, DocumentForm());
  OT_ASSERT_OK(identity);
  const auto vocabulary = SmallVocabulary::Create(full, 280, "x");
  OT_ASSERT_OK(vocabulary);
  // Tokens backwards, halves of characters (single bytes), and EOS in the middle.
  std::vector<uint32_t> ids, expected;
  for (uint32_t i = 0; i < 598; ++i) ids.push_back(597 - i);
  ids.insert(ids.end(), {599, 3, 598, 599});
  for (const uint32_t id : ids) {
    const absl::Span<const uint32_t> expansion = vocabulary->Expand(id);
    expected.insert(expected.end(), expansion.begin(), expansion.end());
  }
  const std::vector<uint32_t> proper = testing::Ids(*tokenizer, "the river reads");
  OT_ASSERT_OK(testing::WriteShards(directory_.File("big"), *identity, {proper, ids, ids}));
  const auto result = ShrinkCorpus(Options(full, 280));
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->different_documents, 2);
  EXPECT_THAT(result->first_difference, ::testing::HasSubstr("document 1 of "));
  const std::vector<uint32_t> stored = Ids(directory_.File("small"));
  ASSERT_GE(stored.size(), 2 * expected.size());
  const auto begin = stored.end() - static_cast<std::ptrdiff_t>(2 * expected.size());
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), begin));
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                         begin + static_cast<std::ptrdiff_t>(expected.size())));
  EXPECT_EQ(expected[expected.size() - 2], 280u);
  EXPECT_EQ(expected.back(), 281u);
}

TEST_F(ShrinkTest, ReadsManyShardsAndWritesAsManyAsAsked) {
  const BpeDefinition full = TrainedDefinition(400);
  const auto tokenizer = MakeTokenizer(full);
  const auto identity = IdentityOf(*tokenizer, DocumentForm());
  std::vector<std::vector<uint32_t>> documents;
  for (uint32_t i = 0; i < 20; ++i) {
    documents.push_back(testing::Ids(*tokenizer, SampleText(200, i)));
  }
  OT_ASSERT_OK(testing::WriteShards(directory_.File("big"), *identity, documents, 300));
  ShrinkOptions options = Options(full, 300);
  options.tokens_per_shard = 500;
  const auto result = ShrinkCorpus(options);
  OT_ASSERT_OK(result);
  const auto corpus = Corpus::Open({options.out});
  EXPECT_GT((*corpus)->shards().size(), 3u);
  options.tokens_per_shard = 1 << 20;
  options.out = directory_.File("one");
  OT_ASSERT_OK(ShrinkCorpus(options));
  EXPECT_EQ(Ids(directory_.File("small")), Ids(directory_.File("one")));
  EXPECT_EQ((*corpus)->documents(), 20);
  EXPECT_EQ(result->documents, 20);
  EXPECT_TRUE((*corpus)->shards()[0]->document_text_bytes().empty()) << "unknown stays unknown";
}

TEST_F(ShrinkTest, MistakesAreNamedAndLeaveNothing) {
  const BpeDefinition full = TrainedDefinition(400);
  const auto tokenizer = MakeTokenizer(full);
  const auto identity = IdentityOf(*tokenizer, DocumentForm());
  const std::vector<uint32_t> ids = testing::Ids(*tokenizer, SampleText(5000));
  OT_ASSERT_OK(testing::WriteShards(directory_.File("big"), *identity, {ids}));
  OT_EXPECT_ERROR(ShrinkCorpus(Options(full, 255)), "expected 256");
  OT_EXPECT_ERROR(ShrinkCorpus(Options(full, 399)), "cannot keep 399 tokens");
  OT_EXPECT_ERROR(ShrinkCorpus(Options(TrainedDefinition(401), 300)), "with another tokenizer");
  ShrinkOptions absent = Options(full, 300);
  absent.shards = {directory_.File("nowhere/*.h5")};
  OT_EXPECT_ERROR(ShrinkCorpus(absent), "nowhere");

  // An id between the model's tokens and the special ones.
  BpeDefinition gap = full;
  gap.added[1].id = 500;
  OT_ASSERT_OK(FinishDefinition(&gap));
  const auto gap_identity = IdentityOf(*MakeTokenizer(gap), DocumentForm());
  OT_ASSERT_OK(testing::WriteShards(directory_.File("gap"), *gap_identity, {{1, 2, 450, 500}}));
  ShrinkOptions unknown = Options(gap, 300);
  unknown.shards = {directory_.File("gap")};
  OT_EXPECT_ERROR(ShrinkCorpus(unknown), "id 450 at position 2 is no token");

  // A changed byte among the ids would otherwise leave with a checksum that matches.
  const std::string path = directory_.File("big/shard_00000.h5");
  std::string bytes = *ReadFile(path);
  std::string run;
  for (size_t i = 1000; i < 1020; ++i) {
    run.push_back(static_cast<char>(ids[i] & 0xFF));
    run.push_back(static_cast<char>(ids[i] >> 8));
  }
  const size_t at = bytes.find(run);
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  OT_ASSERT_OK(WriteFileAtomically(path, bytes));
  OT_EXPECT_ERROR(ShrinkCorpus(Options(full, 300)), "checksum");

  EXPECT_FALSE(PathExists(directory_.File("small")));
  EXPECT_FALSE(PathExists(directory_.File("small.partial")));
  ShrinkOptions used = Options(full, 300);
  used.out = directory_.File("big");
  OT_EXPECT_ERROR(ShrinkCorpus(used), "exists already");
}

}  // namespace
}  // namespace overtok

#include "data/paloma.h"

#include <gtest/gtest.h>

#include <numeric>

#include "core/io/files.h"
#include "data/text/encode_files.h"
#include "data/text/gzip_writer.h"
#include "tests/data/fixtures.h"

namespace overtok {
namespace {

class PalomaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto tokenizer = LoadTokenizer("bytes", TokenizerOptions());
    OT_ASSERT_OK(tokenizer);
    tokenizer_ = std::move(*tokenizer);
  }
  void Text(const std::string& subset, const std::string& lines,
            const std::string& name = "val.jsonl.gz") {
    const std::string folder = root_ + "/" + subset + "/val";
    OT_ASSERT_OK(CreateDirectories(folder));
    auto writer = GzipWriter::Create(folder + "/" + name);
    OT_ASSERT_OK(writer);
    OT_ASSERT_OK((*writer)->Write(lines));
    OT_ASSERT_OK((*writer)->Close());
  }
  void Shards(const std::string& subset, const ShardIdentity& identity,
              const std::vector<std::vector<uint32_t>>& documents, int64_t text_bytes) {
    OT_ASSERT_OK(testing::WriteShards(root_ + "/" + subset + "/val", identity, documents, 1 << 20,
                                      text_bytes));
  }
  absl::StatusOr<EvalCollection> Load(const EvalOptions& options = EvalOptions()) {
    return LoadEvalCollection(root_, tokenizer_.get(), options);
  }
  testing::TemporaryDirectory directory_;
  const std::string root_ = directory_.File("paloma");
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(PalomaTest, TextIsEncodedInFileOrder) {
  Text("law", "{\"text\": \"d\"}\n", "val_10.jsonl.gz");
  Text("law",
       "{\"text\": \"ab\", \"metadata\": {\"truncated_portion\": \"zzz\"}}\n{\"text\": "
       "\"\\u00e9\"}\n",
       "val_2.jsonl.gz");
  const auto collection = Load();
  OT_ASSERT_OK(collection);
  EXPECT_EQ(collection->set, "paloma");
  EXPECT_FALSE(collection->is_paloma);
  EXPECT_TRUE(collection->missing.empty()) << "this is no part of Paloma";
  ASSERT_EQ(collection->subsets.size(), 1u);
  const EvalSubset& law = collection->subsets[0];
  EXPECT_EQ(law.name, "law");
  EXPECT_EQ(law.documents, 3);
  EXPECT_EQ(law.text_bytes, 5);
  EXPECT_EQ(law.ids,
            (std::vector<uint32_t>{256, 'a', 'b', 257, 256, 0xC3, 0xA9, 257, 256, 'd', 257}));
  EXPECT_EQ(law.exact_bytes, (std::vector<uint16_t>{0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 0}));
  EXPECT_EQ(law.levanter_bytes, (std::vector<uint16_t>{0, 1, 1, 0, 0, 3, 3, 0, 0, 1, 0}));
  EXPECT_TRUE(collection->has_exact_bytes);
  EXPECT_FALSE(collection->exact_bytes_are_spread);
}

TEST_F(PalomaTest, TheRecipesSpaceIsScoredButNoText) {
  Text("law", "{\"text\": \"ab\"}\n");
  EvalOptions options;
  DocumentForm form;
  form.space_before_eos = true;
  options.identity = *IdentityOf(*tokenizer_, form);
  const auto collection = Load(options);
  OT_ASSERT_OK(collection);
  const EvalSubset& law = collection->subsets[0];
  EXPECT_EQ(law.ids, (std::vector<uint32_t>{256, 'a', 'b', ' ', 257}));
  EXPECT_EQ(law.exact_bytes, (std::vector<uint16_t>{0, 1, 1, 0, 0}));
  EXPECT_EQ(law.levanter_bytes, (std::vector<uint16_t>{0, 1, 1, 1, 0}));
}

// The training data may begin and end documents with other ids than the tokenizer's file names.
TEST_F(PalomaTest, TheTrainingDataNamesTheSpecialIds) {
  Text("law", "{\"text\": \"ab\"}\n");
  EvalOptions options;
  options.identity = *IdentityOf(*tokenizer_, DocumentForm());
  options.identity.bos = 257;
  options.identity.eos = 10;
  const auto collection = Load(options);
  OT_ASSERT_OK(collection);
  EXPECT_EQ(collection->subsets[0].ids, (std::vector<uint32_t>{257, 'a', 'b', 10}));
  EXPECT_EQ(collection->subsets[0].exact_bytes, (std::vector<uint16_t>{0, 1, 1, 0}));
  EXPECT_EQ(collection->subsets[0].levanter_bytes, (std::vector<uint16_t>{0, 1, 1, 0}));
}

TEST_F(PalomaTest, SixteenSubsetsArePaloma) {
  for (const std::string& name : PalomaSubsets()) Text(name, "{\"text\": \"x\"}\n");
  auto collection = Load();
  OT_ASSERT_OK(collection);
  EXPECT_TRUE(collection->is_paloma);
  EXPECT_EQ(collection->subsets.size(), 16u);
  EXPECT_EQ(collection->subsets[0].name, "4chan");
  EXPECT_EQ(collection->subsets[10].name, "manosphere_meta_sep");
  EXPECT_TRUE(collection->missing.empty());
  Text("ptb", "");  // an empty subset: named, and this is no Paloma any more
  collection = Load();
  OT_ASSERT_OK(collection);
  EXPECT_FALSE(collection->is_paloma);
  EXPECT_EQ(collection->empty, std::vector<std::string>{"ptb"});
  OT_ASSERT_OK(RemoveTree(root_ + "/4chan_meta_sep"));
  collection = Load();
  OT_ASSERT_OK(collection);
  EXPECT_EQ(collection->missing, std::vector<std::string>{"4chan"});
}

TEST_F(PalomaTest, ContentHashFollowsTheText) {
  Text("law", "{\"text\": \"ab\"}\n");
  const std::string first = Load()->content_hash;
  EXPECT_EQ(Load()->content_hash, first);
  Text("law", "{\"text\": \"ac\"}\n");
  EXPECT_NE(Load()->content_hash, first);
}

TEST_F(PalomaTest, ShardsWithoutTokenizerSpreadTheBytesOfDocuments) {
  ShardIdentity identity = testing::ByteIdentity();
  Shards("law", identity, {{256, 1, 2, 257}, {256, 3, 257}}, 7);
  tokenizer_.reset();
  const auto collection = Load();
  OT_ASSERT_OK(collection);
  const EvalSubset& law = collection->subsets[0];
  EXPECT_EQ(law.ids, (std::vector<uint32_t>{256, 1, 2, 257, 256, 3, 257}));
  EXPECT_EQ(std::accumulate(law.exact_bytes.begin(), law.exact_bytes.begin() + 4, 0), 7);
  EXPECT_EQ(std::accumulate(law.exact_bytes.begin() + 4, law.exact_bytes.end(), 0), 7);
  EXPECT_TRUE(collection->exact_bytes_are_spread);
  EXPECT_FALSE(collection->has_levanter_bytes);
  EXPECT_TRUE(law.levanter_bytes.empty());
  EXPECT_EQ(DescribeDifference(collection->identity, identity), "");
}

TEST_F(PalomaTest, ShardsWithoutBytesStillGiveALoss) {
  Shards("law", testing::ByteIdentity(), {{256, 1, 257}}, 0);
  tokenizer_.reset();
  const auto collection = Load();
  OT_ASSERT_OK(collection);
  EXPECT_FALSE(collection->has_exact_bytes);
  EXPECT_TRUE(collection->subsets[0].exact_bytes.empty());
}

TEST_F(PalomaTest, ShardsWithTheirTokenizerAreExact) {
  const ShardIdentity identity = *IdentityOf(*tokenizer_, DocumentForm());
  Shards("law", identity, {{256, 'a', 0xC3, 257}}, 2);
  const auto collection = Load();
  OT_ASSERT_OK(collection);
  EXPECT_EQ(collection->subsets[0].exact_bytes, (std::vector<uint16_t>{0, 1, 1, 0}));
  EXPECT_EQ(collection->subsets[0].levanter_bytes, (std::vector<uint16_t>{0, 1, 3, 0}));
}

TEST_F(PalomaTest, MistakesAreNamed) {
  OT_EXPECT_ERROR(Load(), "is not a directory");
  OT_ASSERT_OK(CreateDirectories(root_));
  OT_EXPECT_ERROR(Load(), "holds no subset");
  Text("law", "");
  OT_EXPECT_ERROR(Load(), "its subsets are empty (law)");
  Text("law", "{\"text\": \"a\"}\n{\"content\": \"b\"}\n");
  OT_EXPECT_ERROR(Load(), "val.jsonl.gz:2: no field \"text\"");
  Text("law", "{\"text\": \"a\"}\n");
  EvalOptions options;
  options.identity = testing::ByteIdentity();
  OT_EXPECT_ERROR(Load(options), "does not fit the training data: tokenizer bytes");
  Shards("poems", testing::ByteIdentity(), {{1}}, 0);
  OT_EXPECT_ERROR(Load(), "mixes subsets of text and of token shards");
  OT_ASSERT_OK(RemoveTree(root_ + "/law"));
  OT_EXPECT_ERROR(Load(), "does not fit the training data: tokenizer fake");
  OT_ASSERT_OK(RemoveTree(root_ + "/poems"));
  Text("law", "{\"text\": \"a\"}\n");
  tokenizer_.reset();
  OT_EXPECT_ERROR(Load(), "there is no tokenizer to encode it");
}

}  // namespace
}  // namespace overtok

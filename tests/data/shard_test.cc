#include "data/shard.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "tests/data/fixtures.h"

namespace overtok {
namespace {

using testing::ByteIdentity;
using testing::CountingDocument;
using testing::WriteShards;

class ShardTest : public ::testing::Test {
 protected:
  ~ShardTest() override { SetFileFaultHook(nullptr); }
  std::string First() const { return directory_.File("shard_00000.h5"); }
  // Rewrites one byte of a file at `offset` from the place where `what` starts.
  void FlipByteAfter(const std::string& path, const std::string& what, size_t offset) {
    std::string bytes = *ReadFile(path);
    const size_t at = bytes.find(what);
    ASSERT_NE(at, std::string::npos);
    bytes[at + offset] = static_cast<char>(bytes[at + offset] ^ 1);
    OT_ASSERT_OK(WriteFileAtomically(path, bytes));
  }
  testing::TemporaryDirectory directory_;
};

TEST_F(ShardTest, RoundTrips) {
  const std::vector<std::vector<uint32_t>> documents = {
      {256, 1, 2, 257}, {256, 257}, {256, 9, 257}};
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), documents, 100, 7));
  const auto shard = Shard::Open(First(), true);
  OT_ASSERT_OK(shard);
  EXPECT_EQ((*shard)->tokens(), 9);
  EXPECT_EQ((*shard)->documents(), 3);
  EXPECT_EQ((*shard)->document_offsets(), (std::vector<uint64_t>{0, 4, 6, 9}));
  EXPECT_EQ((*shard)->document_text_bytes(), (std::vector<uint64_t>{7, 7, 7}));
  EXPECT_EQ((*shard)->min_id(), 1u);
  EXPECT_EQ((*shard)->max_id(), 257u);
  EXPECT_EQ(DescribeDifference((*shard)->identity(), ByteIdentity()), "");
  std::vector<uint32_t> ids(9);
  OT_ASSERT_OK((*shard)->Read(0, 9, ids.data()));
  EXPECT_EQ(ids, (std::vector<uint32_t>{256, 1, 2, 257, 256, 257, 256, 9, 257}));
  EXPECT_EQ(ListDirectory(directory_.path())->size(), 1u) << "temporary files are left";
}

TEST_F(ShardTest, BlocksOfManyIdsRoundTrip) {
  // More than two checksum blocks, and documents that cross their borders.
  std::vector<std::vector<uint32_t>> documents(3, CountingDocument(777'777));
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), documents, int64_t{1} << 30));
  const auto shard = Shard::Open(First(), true);
  OT_ASSERT_OK(shard);
  std::vector<uint32_t> ids(777'777);
  OT_ASSERT_OK((*shard)->Read(2 * 777'777, 777'777, ids.data()));
  EXPECT_EQ(ids, documents[2]);
  EXPECT_TRUE((*shard)->document_text_bytes().empty());
}

TEST_F(ShardTest, StorageFollowsTheVocabulary) {
  ShardIdentity identity = ByteIdentity();
  for (const auto& [vocabulary, type, id] : {std::tuple{int64_t{65536}, DType::kU16, 65535u},
                                             {int64_t{65537}, DType::kU32, 65536u},
                                             {int64_t{151644}, DType::kU32, 151643u}}) {
    const std::string directory = directory_.File(std::to_string(vocabulary));
    identity.vocab_size = vocabulary;
    OT_ASSERT_OK(WriteShards(directory, identity, {{id, 0}}));
    const auto file = Hdf5File::OpenRead(directory + "/shard_00000.h5");
    OT_ASSERT_OK(file);
    EXPECT_EQ(file->Info("/tokens")->dtype, type);
    uint32_t read = 0;
    OT_ASSERT_OK((*Shard::Open(directory + "/shard_00000.h5", true))->Read(0, 1, &read));
    EXPECT_EQ(read, id);
  }
}

// Case 69: an id beyond the vocabulary is refused, never narrowed (151643 would become 20571).
TEST_F(ShardTest, WriterRefusesIdsBeyondTheVocabulary) {
  OT_EXPECT_ERROR(WriteShards(directory_.path(), ByteIdentity(), {{1, 2}, {5, 151643}}),
                  "id 151643 at position 1 of document 1 is not below the vocabulary size 300");
  EXPECT_TRUE(ListDirectory(directory_.path())->empty());
}

TEST_F(ShardTest, WriterRefusesImpossibleIdentities) {
  ShardIdentity identity = ByteIdentity();
  identity.eos = 300;
  OT_EXPECT_ERROR(WriteShards(directory_.path(), identity, {{1}}), "the eos id 300 is not below");
  identity = ByteIdentity();
  identity.pad = identity.eos;
  OT_EXPECT_ERROR(WriteShards(directory_.path(), identity, {{1}}), "the pad id 257 is also");
  OT_EXPECT_ERROR(WriteShards(directory_.path(), ByteIdentity(), {{}}), "without ids");
}

TEST_F(ShardTest, DocumentsStayWholeAcrossShards) {
  const std::vector<std::vector<uint32_t>> documents = {CountingDocument(6), CountingDocument(5),
                                                        CountingDocument(25), CountingDocument(1),
                                                        CountingDocument(9)};
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), documents, 10));
  const auto corpus = Corpus::Open({directory_.path()});
  OT_ASSERT_OK(corpus);
  std::vector<int64_t> sizes;
  for (const auto& shard : (*corpus)->shards()) sizes.push_back(shard->tokens());
  EXPECT_EQ(sizes, (std::vector<int64_t>{6, 5, 25, 10}));
  EXPECT_EQ((*corpus)->documents(), 5);
  std::vector<uint32_t> all, read(46);
  for (const auto& document : documents) all.insert(all.end(), document.begin(), document.end());
  OT_ASSERT_OK((*corpus)->Read(0, 46, read.data()));  // crosses every border
  EXPECT_EQ(read, all);
  read.resize(7);
  OT_ASSERT_OK((*corpus)->Read(5, 7, read.data()));
  EXPECT_EQ(read, std::vector<uint32_t>(all.begin() + 5, all.begin() + 12));
}

TEST_F(ShardTest, UnfinishedWriterLeavesNothingThatLooksFinished) {
  {
    auto writer = ShardWriter::Create(directory_.path(), ByteIdentity(), 4);
    OT_ASSERT_OK(writer);
    const std::vector<uint32_t> ids = {1, 2, 3};
    OT_ASSERT_OK((*writer)->Append(ids.data(), 3, 0));
  }
  EXPECT_TRUE(ListDirectory(directory_.path())->empty());
  OT_EXPECT_ERROR(Corpus::Open({directory_.path()}), "no file matches");
}

// No space at any point: an error with the reason, and no shard.
TEST_F(ShardTest, FaultsAtEveryPointLeaveNoShard) {
  for (const char* point : {"open", "write", "fsync", "rename"}) {
    SetFileFaultHook([&](absl::string_view operation, absl::string_view path) {
      const bool ours = path.find("shard_") != absl::string_view::npos;
      return ours && operation == point ? absl::ResourceExhaustedError("No space left on device")
                                        : absl::OkStatus();
    });
    OT_EXPECT_ERROR(WriteShards(directory_.path(), ByteIdentity(), {{1, 2, 3}}), "No space left");
    SetFileFaultHook(nullptr);
    EXPECT_TRUE(ListDirectory(directory_.path())->empty()) << point;
  }
}

TEST_F(ShardTest, UsedDirectoriesAreRefusedAndLeftoversRemoved) {
  OT_ASSERT_OK(WriteFileAtomically(directory_.File("shard_00003.h5.tmp"), "left over"));
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {{1}}));
  EXPECT_FALSE(PathExists(directory_.File("shard_00003.h5.tmp")));
  OT_EXPECT_ERROR(WriteShards(directory_.path(), ByteIdentity(), {{1}}), "holds shard_00000.h5");
}

TEST_F(ShardTest, MissingCompletionMarkIsRefused) {
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {{1, 2}}));
  FlipByteAfter(First(), "complete", 0);  // the mark gets another name
  OT_EXPECT_ERROR(Shard::Open(First()), "is not complete");
}

TEST_F(ShardTest, OtherVersionIsRefused) {
  auto file = Hdf5File::Create(First());
  OT_ASSERT_OK(file);
  OT_ASSERT_OK(file->SetAttribute("/", "format", "overtok-shard"));
  OT_ASSERT_OK(file->SetAttribute("/", "version", int64_t{2}));
  OT_ASSERT_OK(file->Close());
  OT_EXPECT_ERROR(Shard::Open(First()), "shard version 2, this program reads version 1");
}

TEST_F(ShardTest, TruncatedFileIsRefused) {
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {CountingDocument(9000)}));
  const std::string bytes = *ReadFile(First());
  for (const size_t keep : {size_t{0}, size_t{600}, bytes.size() / 2, bytes.size() - 1}) {
    OT_ASSERT_OK(WriteFileAtomically(First(), bytes.substr(0, keep)));
    OT_EXPECT_ERROR(Shard::Open(First(), true), "shard_00000.h5");
  }
}

TEST_F(ShardTest, FlippedIdIsFoundByVerification) {
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {CountingDocument(9000)}));
  FlipByteAfter(First(), std::string("\x10\0\x11\0\x12\0\x13\0", 8), 2);
  OT_ASSERT_OK(Shard::Open(First()));
  OT_EXPECT_ERROR(Shard::Open(First(), true), "do not match their checksum");
}

// Case 5: an id beyond the vocabulary in a damaged file is named by shard and position.
TEST_F(ShardTest, OutOfRangeIdIsNamedByShardAndPosition) {
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {CountingDocument(20)}));
  FlipByteAfter(First(), std::string("\x04\0\x05\0\x06\0", 6), 3);  // 5 becomes 5 + 256 = 261
  std::vector<uint32_t> ids(20);
  const auto shard = Shard::Open(First());
  OT_ASSERT_OK(shard);
  OT_ASSERT_OK((*shard)->Read(0, 20, ids.data()));  // 261 is inside the vocabulary of 300
  FlipByteAfter(First(), std::string("\x04\0\x05\x01\x06\0", 6), 5);
  std::string bytes = *ReadFile(First());
  bytes[bytes.find(std::string("\x05\x01\x06\x01", 4)) + 3] = 2;  // 6 becomes 6 + 512
  OT_ASSERT_OK(WriteFileAtomically(First(), bytes));
  const auto damaged = Shard::Open(First());
  OT_ASSERT_OK(damaged);
  OT_EXPECT_ERROR((*damaged)->Read(4, 10, ids.data()),
                  "shard_00000.h5: id 518 at position 6 is not below the vocabulary size 300");
}

// Case 75: an open shard serves threads and forked processes alike.
TEST_F(ShardTest, ThreadsAndForkedProcessesReadKnownValues) {
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {CountingDocument(9000)}));
  const auto shard = Shard::Open(First());
  OT_ASSERT_OK(shard);
  const auto read_all = [&shard] {
    std::vector<int> wrong(4);
    std::vector<std::thread> threads;
    for (size_t t = 0; t < wrong.size(); ++t) {
      threads.emplace_back([&, t] {
        for (int64_t i = 0; i < 10'000; ++i) {
          uint32_t ids[3] = {};
          const int64_t at = (i * 997 + static_cast<int64_t>(t)) % 8990;
          const bool good = (*shard)->Read(at, 3, ids).ok() &&
                            ids[0] == static_cast<uint32_t>(at % 256) &&
                            ids[2] == static_cast<uint32_t>((at + 2) % 256);
          wrong[t] += good ? 0 : 1;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return wrong == std::vector<int>(4);
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 2; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) _exit(read_all() ? 0 : 1);
    children.push_back(child);
  }
  EXPECT_TRUE(read_all());
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
}

TEST_F(ShardTest, DamagedIndexIsRefused) {
  OT_ASSERT_OK(WriteShards(directory_.path(), ByteIdentity(), {{1, 2}, {3, 4, 5}, {6}}));
  // Offsets 0, 2, 5, 6: the 2 becomes 3.
  FlipByteAfter(First(), std::string("\x02\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0", 16), 0);
  OT_EXPECT_ERROR(Shard::Open(First()), "document index does not match");
}

TEST_F(ShardTest, CorporaMustAgree) {
  ShardIdentity other = ByteIdentity();
  other.tokenizer_hash = "beef";
  OT_ASSERT_OK(WriteShards(directory_.File("a"), ByteIdentity(), {{1}}));
  OT_ASSERT_OK(WriteShards(directory_.File("b"), other, {{1}}));
  OT_EXPECT_ERROR(Corpus::Open({directory_.File("a"), directory_.File("b/*.h5")}),
                  "tokenizer fake (beef) against fake (f00d)");
  OT_EXPECT_ERROR(Corpus::Open({directory_.File("a"), directory_.File("a/shard_00000.h5")}),
                  "named twice");
  OT_EXPECT_ERROR(Corpus::Open({}), "the list of shards is empty");
  OT_EXPECT_ERROR(Corpus::Open({directory_.File("c/*.h5")}), "no file matches");
}

TEST_F(ShardTest, ContentHashDependsOnIdsAlone) {
  ShardIdentity renamed = ByteIdentity();
  renamed.tokenizer_name = "other name";
  OT_ASSERT_OK(WriteShards(directory_.File("a"), ByteIdentity(), {{1, 2}}));
  OT_ASSERT_OK(WriteShards(directory_.File("b"), renamed, {{1, 2}}));
  OT_ASSERT_OK(WriteShards(directory_.File("c"), ByteIdentity(), {{1, 3}}));
  const auto hash = [&](const char* name) {
    return (*Corpus::Open({directory_.File(name)}))->content_hash();
  };
  EXPECT_EQ(hash("a"), hash("b"));
  EXPECT_NE(hash("a"), hash("c"));
}

}  // namespace
}  // namespace overtok

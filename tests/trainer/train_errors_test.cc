// Mistakes of a user, each with an error that names it, before anything is trained.
#include <fstream>

#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/run_directory.h"
#include "trainer/train_loop.h"

namespace overtok {
namespace {

using testing::MakeTinyCorpus;
using testing::TemporaryDirectory;
using testing::TinyConfig;
using testing::TinyIdentity;
using testing::WriteTinyShards;

class TrainErrorsTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }
  absl::StatusOr<int> Train(const std::vector<std::string>& overrides, bool fresh = false) {
    OT_ASSIGN_OR_RETURN(LoadedConfig loaded, TinyConfig(root(), "run", overrides));
    TrainOptions options;
    options.fresh = fresh;
    return overtok::Train(std::move(loaded), options, testing::Alone());
  }
  TemporaryDirectory directory_;
};

TEST_F(TrainErrorsTest, CheckpointOfAnotherConfiguration) {
  ASSERT_EQ(Train({"train.steps=2"}).value(), 0);
  OT_EXPECT_ERROR(Train({"model.intermediate_size=64"}),
                  "model.intermediate_size is 48 there and 64 here");
  OT_EXPECT_ERROR(Train({"model.hybrid_norm=false"}), "model.hybrid_norm is true there");
  OT_EXPECT_ERROR(Train({"model.rope_theta=5000"}), "model.rope_theta is 10000 there");
  OT_EXPECT_ERROR(Train({"data.order.seed=7"}), "data.order.seed is 42 there and 7 here");
  OT_EXPECT_ERROR(Train({"data.sequence_length=8"}), "data.sequence_length is 16 there");
  OT_EXPECT_ERROR(Train({"train.batch_sequences=2"}), "train.batch_sequences is 3 there");
  OT_EXPECT_ERROR(Train({"data.unique_tokens=96"}), "number of windows in one pass is 10 there");
  // What may change.
  EXPECT_EQ(Train({"optimizer.lr=0.01", "train.steps=3", "train.micro_batch_sequences=3",
                   "checkpoint.every_steps=1"})
                .value(),
            0);
}

TEST_F(TrainErrorsTest, OtherDataUnderACheckpoint) {
  ASSERT_EQ(Train({"train.steps=2"}).value(), 0);
  OT_ASSERT_OK(RemoveTree(root() + "/train"));
  OT_ASSERT_OK(WriteTinyShards(root() + "/train", 2, 165, 100, TinyIdentity()));
  OT_EXPECT_ERROR(Train({}), "hash of the shards' ids");
  OT_ASSERT_OK(RemoveTree(root() + "/train"));
  ShardIdentity other = TinyIdentity();
  other.tokenizer_hash = "ffff";
  OT_ASSERT_OK(WriteTinyShards(root() + "/train", 1, 165, 100, other));
  OT_EXPECT_ERROR(Train({}), "eval.held_out");
  OT_EXPECT_ERROR(Train({"eval.held_out=null"}), "hash of the shards' tokenizer");
}

TEST_F(TrainErrorsTest, ShardsOfAnotherTokenizerOrCutOff) {
  ShardIdentity other = TinyIdentity();
  other.tokenizer_hash = "ffff";
  OT_ASSERT_OK(WriteTinyShards(root() + "/other", 1, 100, 100, other));
  OT_EXPECT_ERROR(Train({"data.train=[" + root() + "/train/*.h5, " + root() + "/other/*.h5]"}),
                  "tokenizer");
  const std::string shard = root() + "/train/shard_00000.h5";
  std::string bytes = ReadFile(shard).value();
  bytes.resize(bytes.size() / 2);
  std::ofstream(shard, std::ios::binary) << bytes;
  OT_EXPECT_ERROR(Train({}), "shard_00000.h5");
}

TEST_F(TrainErrorsTest, WhatTheDataCannotGive) {
  OT_EXPECT_ERROR(Train({"data.train=[" + root() + "/none/*.h5]"}), "none");
  OT_EXPECT_ERROR(Train({"data.train=[]"}), "data.train");
  OT_EXPECT_ERROR(Train({"model.vocab_size=60"}), "vocab");
  OT_EXPECT_ERROR(Train({"data.sequence_length=4096"}), "4096");
  EXPECT_FALSE(PathExists(root() + "/run")) << "a mistake left a run directory behind";
}

TEST_F(TrainErrorsTest, FreshRefusesARun) {
  ASSERT_EQ(Train({"train.steps=1"}, true).value(), 0);
  OT_EXPECT_ERROR(Train({"train.steps=1"}, true), "holds a run already");
}

TEST_F(TrainErrorsTest, ADirectoryInUse) {
  const auto other = RunDirectory::Open(root() + "/run", false);
  OT_ASSERT_OK(other);
  OT_EXPECT_ERROR(Train({}), "another process");
}

TEST_F(TrainErrorsTest, MemoryThatIsNotThere) {
  // 2^17 wide and 2^31 classes: about a pebibyte of weights. Only planned, never taken.
  OT_EXPECT_ERROR(Train({"model.vocab_size=2147483648", "model.hidden_size=131072"}), "of memory");
}

TEST_F(TrainErrorsTest, AMissingRunDirectory) {
  OT_EXPECT_ERROR(Train({"checkpoint.directory=null"}), "checkpoint.directory");
}

TEST_F(TrainErrorsTest, DamagedCheckpointAndMetrics) {
  ASSERT_EQ(Train({"train.steps=2"}).value(), 0);
  const std::string metrics = root() + "/run/metrics.jsonl";
  const std::string lines = ReadFile(metrics).value();
  std::ofstream(metrics) << "";
  OT_EXPECT_ERROR(Train({}), "metrics.jsonl has 0 bytes");
  std::ofstream(metrics) << lines;
  const std::string model = root() + "/run/checkpoints/step-00000002/rank-00000.h5";
  const int64_t at =
      Hdf5File::OpenRead(model).value().Info("/model/embed.weight").value().offset + 3;
  std::string bytes = ReadFile(model).value();
  bytes[static_cast<size_t>(at)] ^= 1;
  std::ofstream(model, std::ios::binary) << bytes;
  OT_EXPECT_ERROR(Train({}), "embed.weight do not match their checksum");
}

}  // namespace
}  // namespace overtok

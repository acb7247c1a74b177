// Checkpoints survive what happens to them: kills and full disks at every write point, damage
// afterwards, and configurations they were not made with.
#include "trainer/checkpoint.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <memory>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/checkpoint_model.h"

namespace overtok {
namespace {

using testing::CheckpointModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SomeState;
using testing::TemporaryDirectory;

// Hundreds of saves: in memory where that can be had, because fsync waits for a disk.
const bool kInMemory = IsDirectory("/dev/shm") && setenv("TMPDIR", "/dev/shm", 0) == 0;

class CheckpointTest : public ::testing::Test {
 protected:
  ~CheckpointTest() override { SetFileFaultHook(nullptr); }
  CheckpointStore Store(int64_t keep = 2) { return CheckpointStore(path_, keep, world_.get()); }
  absl::Status Save(int64_t step, int64_t keep = 2) {
    const CheckpointModel saved = CheckpointModel::Owned({}, static_cast<uint64_t>(step));
    return Store(keep).Save(SomeState(step), saved.model, saved.optimizer);
  }
  // Whether the checkpoint of `step` loads and holds what Save(step) put into it.
  absl::Status Load(int64_t step) {
    const CheckpointStore store = Store();
    const CheckpointModel loaded = CheckpointModel::Wanted({});
    OT_ASSIGN_OR_RETURN(const TrainingState state, store.ReadState(step));
    OT_RETURN_IF_ERROR(store.LoadModel(step, loaded.model));
    OT_RETURN_IF_ERROR(store.LoadOptimizer(step, loaded.optimizer));
    const std::string difference = loaded.FirstDifference(static_cast<uint64_t>(step));
    if (!difference.empty()) return absl::InternalError("other values of " + difference);
    TrainingState expected = SomeState(step);
    expected.model_hash = state.model_hash;
    expected.optimizer_hash = state.optimizer_hash;
    if (ToText(state) != ToText(expected)) return absl::InternalError("other state");
    return absl::OkStatus();
  }
  std::vector<int64_t> Marked() { return Store().Marked().value(); }

  TemporaryDirectory directory_;  // below kInMemory's directory
  const std::string path_ = directory_.File("checkpoints");
  const std::unique_ptr<Communicator> world_ = OneRank();
};

TEST_F(CheckpointTest, RestoresEveryBitAndKeepsTheNewest) {
  EXPECT_TRUE(kInMemory || !IsDirectory("/dev/shm"));
  EXPECT_THAT(Marked(), IsEmpty());
  for (const int64_t step : {1, 2, 12345678, 123456789}) OT_ASSERT_OK(Save(step));
  EXPECT_THAT(Marked(), ElementsAre(12345678, 123456789));
  OT_EXPECT_ERROR(Load(1), "finished ones are of the steps: 12345678, 123456789");
  OT_EXPECT_ERROR(Load(2), "step-00000002");
  OT_ASSERT_OK(Load(12345678));
  OT_ASSERT_OK(Load(123456789));
}

TEST_F(CheckpointTest, SavingAStepTwiceKeepsTheFirst) {
  OT_ASSERT_OK(Save(5));
  const CheckpointModel other = CheckpointModel::Owned({}, 999);
  OT_ASSERT_OK(Store().Save(SomeState(5), other.model, other.optimizer));
  OT_ASSERT_OK(Load(5));
}

// cases.md 57: kill -9 at every write point; the next start loads the previous step, or the new one
// where its mark was already there.
TEST_F(CheckpointTest, KillAtEveryWritePointLeavesAnOldOrANewCheckpoint) {
  int points = 0;
  SetFileFaultHook([&](absl::string_view, absl::string_view) {
    ++points;
    return absl::OkStatus();
  });
  OT_ASSERT_OK(Save(1, 1));
  OT_ASSERT_OK(Save(2, 1));
  SetFileFaultHook(nullptr);
  ASSERT_GT(points, 30);
  int old_ones = 0, new_ones = 0;
  for (int kill_at = 1; kill_at <= points; ++kill_at) {
    OT_ASSERT_OK(RemoveTree(path_));
    OT_ASSERT_OK(Save(1, 1));
    const pid_t child = fork();
    if (child == 0) {
      int left = kill_at;
      SetFileFaultHook([&](absl::string_view, absl::string_view) {
        if (--left == 0) kill(getpid(), SIGKILL);
        return absl::OkStatus();
      });
      _exit(Save(2, 1).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status)) break;  // past the last point of one save
    const std::vector<int64_t> marked = Marked();
    ASSERT_FALSE(marked.empty()) << "killed at write point " << kill_at;
    OT_ASSERT_OK(Load(marked.back()));
    ++(marked.back() == 1 ? old_ones : new_ones);
    // The run goes on from there, and leftovers go.
    OT_ASSERT_OK(Save(3, 1));
    EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000003")) << kill_at;
    OT_ASSERT_OK(Load(3));
  }
  EXPECT_GT(old_ones, 10);
  EXPECT_GT(new_ones, 0);
}

// cases.md 59: the old checkpoint goes only after the new one is safe.
TEST_F(CheckpointTest, FailureAtEveryWritePointKeepsTheOldCheckpoint) {
  for (int fail_at = 1;; ++fail_at) {
    OT_ASSERT_OK(RemoveTree(path_));
    OT_ASSERT_OK(Save(1, 1));
    int left = fail_at;
    bool failed = false;
    SetFileFaultHook([&](absl::string_view operation, absl::string_view path) -> absl::Status {
      if (--left != 0) return absl::OkStatus();
      failed = true;
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot ", operation, " ", path, ": No space left on device"));
    });
    const absl::Status status = Save(2, 1);
    SetFileFaultHook(nullptr);
    if (!failed) {
      OT_ASSERT_OK(status);
      break;
    }
    ASSERT_FALSE(status.ok()) << "failed at write point " << fail_at;
    EXPECT_THAT(std::string(status.message()), HasSubstr("No space left"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("step-00000002"));
    const std::vector<int64_t> marked = Marked();
    ASSERT_FALSE(marked.empty());
    OT_ASSERT_OK(Load(marked.back()));
    OT_ASSERT_OK(Save(2, 1));
    EXPECT_THAT(Marked(), ElementsAre(2));
    OT_ASSERT_OK(Load(2));
  }
}

TEST_F(CheckpointTest, IgnoresWhatHasNoMark) {
  OT_ASSERT_OK(Save(1));
  OT_ASSERT_OK(Save(2));
  OT_ASSERT_OK(RemoveTree(path_ + "/step-00000002/complete"));
  OT_ASSERT_OK(CreateDirectories(path_ + "/.saving-00000009-1"));
  OT_ASSERT_OK(CreateDirectories(path_ + "/step-abc"));
  EXPECT_THAT(Marked(), ElementsAre(1));
  OT_EXPECT_ERROR(Load(2), "no finished checkpoint");
}

TEST_F(CheckpointTest, NamesTheDamagedTensor) {
  OT_ASSERT_OK(Save(7));
  const std::string file = path_ + "/step-00000007/rank-00000.h5";
  const CheckpointModel saved = CheckpointModel::Owned({}, 7);
  std::string bytes = ReadFile(file).value();
  const std::string values(static_cast<const char*>(saved.model[0].tensor.raw()), 64);
  const size_t at = bytes.find(values);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1] ^= 4;
  std::ofstream(file, std::ios::binary) << bytes;
  OT_EXPECT_ERROR(Load(7), "rank-00000.h5: the bytes of embed.weight do not match their checksum");
  bytes.resize(bytes.size() - 8);
  std::ofstream(file, std::ios::binary) << bytes;
  OT_EXPECT_ERROR(Load(7), "rank-00000.h5 has ");
  OT_EXPECT_ERROR(Load(7), "changed or cut off after the save; remove the directory");
  OT_ASSERT_OK(RemoveTree(file));
  OT_EXPECT_ERROR(Load(7), "rank-00000.h5 is missing, one of 1 data files");
}

TEST_F(CheckpointTest, NamesAChangedStateOrDescription) {
  const std::pair<const char*, const char*> changes[] = {{"state.json", "896"},
                                                         {"tensors.json", "5656"}};
  for (const auto& [name, number] : changes) {
    OT_ASSERT_OK(RemoveTree(path_));
    OT_ASSERT_OK(Save(7));
    const std::string file = path_ + "/step-00000007/" + name;
    std::string text = ReadFile(file).value();
    ASSERT_NE(text.find(number), std::string::npos);
    text[text.find(number)] = '1';
    std::ofstream(file) << text;
    OT_EXPECT_ERROR(Load(7), "does not match the completion mark");
  }
}

TEST_F(CheckpointTest, RefusesAnotherModel) {
  OT_ASSERT_OK(Save(7));
  const CheckpointStore store = Store();
  std::vector<float> values(5 * 56);
  const Region region = Region::Part({5, 56}, {});
  CheckpointModel wider = CheckpointModel::Wanted({});
  wider.model[0] = {"embed.weight", region, Tensor(values.data(), {5, 56})};
  OT_EXPECT_ERROR(store.LoadModel(7, wider.model),
                  "embed.weight is f32 [101, 56], this configuration needs f32 [5, 56]");
  CheckpointModel more = CheckpointModel::Wanted({});
  more.model.push_back({"more.weight", region, Tensor(values.data(), {5, 56})});
  OT_EXPECT_ERROR(store.LoadModel(7, more.model), "no tensor more.weight");
  CheckpointModel fewer = CheckpointModel::Wanted({});
  fewer.optimizer.pop_back();
  OT_EXPECT_ERROR(store.LoadOptimizer(7, fewer.optimizer),
                  "its optimizer has 6 tensors, this configuration has 5; "
                  "table.last/tables.2.weight is one");
  // The other kind of tensors is another set.
  OT_EXPECT_ERROR(store.LoadOptimizer(7, fewer.model), "no tensor embed.weight");
}

TEST_F(CheckpointTest, ReadsTablesAlone) {
  OT_ASSERT_OK(Save(7));
  CheckpointModel loaded = CheckpointModel::Wanted({});
  const std::vector<ShardedTensor> tables(loaded.optimizer.end() - 2, loaded.optimizer.end());
  OT_ASSERT_OK(Store().LoadTables(7, tables));
  loaded.model.clear();
  loaded.optimizer = tables;
  EXPECT_EQ(loaded.FirstDifference(7), "");
}

TEST_F(CheckpointTest, NamesBothVersionsOfAnOldFormat) {
  OT_ASSERT_OK(CreateDirectories(path_ + "/step-00000007"));
  std::ofstream(path_ + "/step-00000007/complete")
      << "{\n \"format\": \"overtok checkpoint mark\",\n \"version\": 1\n}\n";
  EXPECT_THAT(Marked(), ElementsAre(7));
  OT_EXPECT_ERROR(Load(7),
                  "has version 1 of the checkpoint format, this program reads and writes 2");
  OT_EXPECT_ERROR(Load(7), "finish that run with the program that began it");
}

TEST_F(CheckpointTest, NamesTheKeyThatDiffers) {
  const Identity found = {{"model.hidden_size", "32"}, {"data.order.seed", "42"}};
  OT_ASSERT_OK(CheckIdentity("c", found, found));
  OT_ASSERT_OK(CheckIdentity("c", found, {{"data.order.seed", "42"}}));
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"model.hidden_size", "64"}}),
                  "model.hidden_size is 32 there and 64 here");
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"tokenizer", "ab"}}),
                  "tokenizer is no value there and ab here");
  // An option that came after the checkpoint was written and is off; one that is on; one turned
  // off.
  OT_ASSERT_OK(CheckIdentity("c", found, {{"model.ngram_embedding.rows", "null"}}));
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"model.ngram_embedding.rows", "7"}}),
                  "model.ngram_embedding.rows is no value there and 7 here");
  OT_EXPECT_ERROR(CheckIdentity("c", found, {{"model.hidden_size", "null"}}),
                  "model.hidden_size is 32 there and null here");
}

TEST_F(CheckpointTest, SizeOnDiskIsWithinTheEstimate) {
  OT_ASSERT_OK(Save(7));
  const CheckpointModel saved = CheckpointModel::Owned({});
  int64_t bytes = 0;
  const std::vector<std::string> files = ListDirectory(path_ + "/step-00000007").value();
  EXPECT_THAT(files, ElementsAre("complete", "rank-00000.h5", "state.json", "tensors.json"));
  for (const std::string& file : files) {
    bytes += FileSize(path_ + "/step-00000007/" + file).value();
  }
  EXPECT_LE(bytes, CheckpointStore::Bytes(saved.model, saved.optimizer));
}

}  // namespace
}  // namespace overtok

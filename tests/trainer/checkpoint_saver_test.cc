// Saving in the background: the checkpoint holds the values of the moment of Save, is marked by a
// poll, and whatever happens before leaves the one before.
#include "trainer/checkpoint_saver.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_ranks.h"
#include "tests/trainer/checkpoint_model.h"

namespace overtok {
namespace {

using testing::CheckpointModel;
using ::testing::ElementsAre;
using testing::ExpectOk;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::RunOnRanks;
using testing::SomeState;
using testing::TemporaryDirectory;

const bool kInMemory = IsDirectory("/dev/shm") && setenv("TMPDIR", "/dev/shm", 0) == 0;

// Holds back writing to paths that contain `part` until Open().
class Gate {
 public:
  explicit Gate(std::string part) : part_(std::move(part)) {
    SetFileFaultHook([this](absl::string_view operation, absl::string_view path) {
      if (operation != "write" || std::string(path).find(part_) == std::string::npos) {
        return absl::OkStatus();
      }
      std::unique_lock<std::mutex> lock(mutex_);
      opened_.wait(lock, [this] { return open_; });
      return result_;
    });
  }
  ~Gate() {
    Open(absl::OkStatus());
    SetFileFaultHook(nullptr);
  }
  void Open(const absl::Status& result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    result_ = result;
    opened_.notify_all();
  }

 private:
  std::string part_;
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
  absl::Status result_;
};

void Overwrite(const CheckpointModel& model) {
  for (const auto* tensors : {&model.model, &model.optimizer}) {
    for (const ShardedTensor& entry : *tensors) {
      std::memset(entry.tensor.raw(), 0x5a, static_cast<size_t>(entry.tensor.bytes()));
    }
  }
}

class CheckpointSaverTest : public ::testing::Test {
 protected:
  void ExpectLoads(int64_t step) {
    const auto world = OneRank();
    const CheckpointStore store(path_, 1, world.get());
    const CheckpointModel wanted = CheckpointModel::Wanted({});
    ExpectOk(store.LoadModel(step, wanted.model));
    ExpectOk(store.LoadOptimizer(step, wanted.optimizer));
    EXPECT_EQ(wanted.FirstDifference(static_cast<uint64_t>(step)), "");
  }
  std::vector<int64_t> Marked() {
    const auto world = OneRank();
    return CheckpointStore(path_, 1, world.get()).Marked().value();
  }
  // Polls until nothing is under way.
  static absl::Status Wait(CheckpointSaver& saver) {
    absl::Status status;
    while (status.ok() && saver.busy()) status = saver.Poll();
    return status;
  }
  TemporaryDirectory directory_;
  const std::string path_ = directory_.File("checkpoints");
};

const Context* OnCpu() {
  static const Context context = CpuContext();
  return &context;
}

TEST_F(CheckpointSaverTest, WritesTheValuesOfTheMoment) {
  EXPECT_TRUE(kInMemory || !IsDirectory("/dev/shm"));
  for (const int ranks : {1, 3}) {
    OT_ASSERT_OK(RemoveTree(path_));
    auto gate = std::make_unique<Gate>(absl::StrCat("rank-0000", ranks - 1));
    RunOnRanks(ranks, [&](Communicator& world) {
      const CheckpointStore store(path_, 1, &world);
      const auto model = CheckpointModel::Owned(Layout::Of(ranks, world.rank(), 1), 6);
      Memory memory(Memory::Mode::kReal);
      CheckpointSaver saver(&store, model.model, model.optimizer, true, OnCpu(), &memory);
      ExpectOk(saver.Poll());
      ExpectOk(saver.Save(SomeState(6)));
      Overwrite(model);  // training goes on
      for (int i = 0; i < 3; ++i) ExpectOk(saver.Poll());
      EXPECT_TRUE(saver.busy());
      world.Barrier();
      if (world.rank() == 0) {
        EXPECT_THAT(Marked(), IsEmpty());
        gate->Open(absl::OkStatus());
      }
      ExpectOk(Wait(saver));
      EXPECT_FALSE(saver.busy());
    });
    EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000006"));
    ExpectLoads(6);
  }
}

TEST_F(CheckpointSaverTest, OneAtATime) {
  RunOnRanks(2, [&](Communicator& world) {
    const CheckpointStore store(path_, 1, &world);
    const auto model = CheckpointModel::Owned(Layout::Of(2, world.rank(), 2), 7);
    Memory memory(Memory::Mode::kReal);
    CheckpointSaver saver(&store, model.model, model.optimizer, true, OnCpu(), &memory);
    ExpectOk(saver.Save(SomeState(6)));
    ExpectOk(saver.Save(SomeState(7)));  // waits for the first
    ExpectOk(saver.Finish());
    ExpectOk(saver.Save(SomeState(7)));  // is there already
    EXPECT_FALSE(saver.busy());
  });
  EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000007"));
  ExpectLoads(7);
}

TEST_F(CheckpointSaverTest, FailureOfTheThreadIsEverybodysLater) {
  Gate gate("rank-00001");
  gate.Open(absl::OkStatus());
  std::vector<absl::Status> statuses(2);
  RunOnRanks(2, [&](Communicator& world) {
    const CheckpointStore store(path_, 1, &world);
    const auto model = CheckpointModel::Owned(Layout::Of(2, world.rank(), 1), 1);
    Memory memory(Memory::Mode::kReal);
    CheckpointSaver saver(&store, model.model, model.optimizer, true, OnCpu(), &memory);
    ExpectOk(saver.Save(SomeState(1)));
    ExpectOk(saver.Finish());
    if (world.rank() == 0) gate.Open(absl::ResourceExhaustedError("No space left on device"));
    world.Barrier();
    ExpectOk(saver.Save(SomeState(2)));
    statuses[static_cast<size_t>(world.rank())] = Wait(saver);
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(std::string(status.message()), HasSubstr("No space left on device"));
    EXPECT_EQ(status, statuses[0]);
  }
  EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000001"));
  ExpectLoads(1);
}

TEST_F(CheckpointSaverTest, AnEndWithoutFinishLeavesTheOneBefore) {
  const auto world = OneRank();
  const CheckpointStore store(path_, 1, world.get());
  const auto model = CheckpointModel::Owned({}, 1);
  Memory memory(Memory::Mode::kReal);
  {
    CheckpointSaver saver(&store, model.model, model.optimizer, true, OnCpu(), &memory);
    OT_ASSERT_OK(saver.Save(SomeState(1)));
    OT_ASSERT_OK(saver.Finish());
    OT_ASSERT_OK(saver.Save(SomeState(2)));
  }
  EXPECT_THAT(Marked(), ElementsAre(1));
  ExpectLoads(1);
  // The next save takes the leftover away.
  OT_ASSERT_OK(store.Save(SomeState(3), model.model, model.optimizer));
  EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000003"));
}

TEST_F(CheckpointSaverTest, TakesMemoryForTheBackgroundAlone) {
  const auto world = OneRank();
  const CheckpointStore store(path_, 1, world.get());
  const auto model = CheckpointModel::Owned({}, 1);
  int64_t bytes = 0;
  for (const auto* tensors : {&model.model, &model.optimizer}) {
    for (const ShardedTensor& entry : *tensors) bytes += entry.tensor.bytes();
  }
  Memory none(Memory::Mode::kDry), copy(Memory::Mode::kDry);
  const CheckpointSaver direct(&store, model.model, model.optimizer, false, OnCpu(), &none);
  EXPECT_EQ(none.total(), 0);
  const CheckpointSaver background(&store, model.model, model.optimizer, true, OnCpu(), &copy);
  EXPECT_GE(copy.bytes(Purpose::kSnapshot), bytes);
  EXPECT_LE(copy.bytes(Purpose::kSnapshot), bytes + 64 * 13);
}

TEST_F(CheckpointSaverTest, SavesAtOnceWithoutTheBackground) {
  RunOnRanks(2, [&](Communicator& world) {
    const CheckpointStore store(path_, 1, &world);
    const auto model = CheckpointModel::Owned(Layout::Of(2, world.rank(), 1), 8);
    Memory memory(Memory::Mode::kDry);
    CheckpointSaver saver(&store, model.model, model.optimizer, false, OnCpu(), &memory);
    ExpectOk(saver.Save(SomeState(8)));
    EXPECT_FALSE(saver.busy());
    ExpectOk(saver.Poll());
  });
  ExpectLoads(8);
}

}  // namespace
}  // namespace overtok

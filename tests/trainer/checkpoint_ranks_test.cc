// Checkpoints of several ranks: written at one layout, read at any other, with one hash; failures
// of one rank are everybody's, and leave what was there.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_ranks.h"
#include "tests/trainer/checkpoint_model.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_load.h"
#include "trainer/checkpoint_saver.h"

namespace overtok {
namespace {

using testing::CheckpointModel;
using ::testing::ElementsAre;
using testing::ExpectOk;
using ::testing::HasSubstr;
using testing::RunOnRanks;
using testing::SomeState;
using testing::TemporaryDirectory;

const bool kInMemory = IsDirectory("/dev/shm") && setenv("TMPDIR", "/dev/shm", 0) == 0;

struct Size {
  int world, tensor;
};

class CheckpointRanksTest : public ::testing::Test {
 protected:
  ~CheckpointRanksTest() override { SetFileFaultHook(nullptr); }
  // Statuses of all ranks.
  std::vector<absl::Status> Save(Size size, int64_t step, int64_t keep = 1) {
    std::vector<absl::Status> statuses(static_cast<size_t>(size.world));
    RunOnRanks(size.world, [&](Communicator& world) {
      const auto owned = CheckpointModel::Owned(LayoutOf(world, size), static_cast<uint64_t>(step));
      statuses[static_cast<size_t>(world.rank())] =
          CheckpointStore(path_, keep, &world).Save(SomeState(step), owned.model, owned.optimizer);
    });
    return statuses;
  }
  std::vector<absl::Status> Load(Size size, int64_t step) {
    std::vector<absl::Status> statuses(static_cast<size_t>(size.world));
    RunOnRanks(size.world, [&](Communicator& world) {
      const auto wanted = CheckpointModel::Wanted(LayoutOf(world, size));
      absl::Status& status = statuses[static_cast<size_t>(world.rank())];
      const CheckpointStore store(path_, 1, &world);
      status = store.ReadState(step).status();
      if (status.ok()) status = store.LoadModel(step, wanted.model);
      if (status.ok()) status = store.LoadOptimizer(step, wanted.optimizer);
      if (!status.ok()) return;
      const std::string difference = wanted.FirstDifference(static_cast<uint64_t>(step));
      if (!difference.empty()) status = absl::InternalError("other values of " + difference);
    });
    return statuses;
  }
  static Layout LayoutOf(Communicator& world, Size size) {
    return Layout::Of(size.world, world.rank(), size.tensor);
  }
  static void ExpectAllOk(const std::vector<absl::Status>& statuses) {
    for (const absl::Status& status : statuses) ExpectOk(status);
  }
  // Every rank has the error, and all the same one.
  static void ExpectError(const std::vector<absl::Status>& statuses, const std::string& part) {
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(std::string(status.message()), HasSubstr(part));
      EXPECT_EQ(status, statuses[0]);
    }
  }
  std::string FileOf(int64_t step, const std::string& name) {
    const auto world = OneRank();
    return JoinPath(CheckpointStore(path_, 1, world.get()).PathOf(step), name);
  }
  // Changes one byte in the middle of a file.
  static void Damage(const std::string& file, const std::string& at) {
    std::string bytes = ReadFile(file).value();
    const size_t place = bytes.find(at);
    ASSERT_NE(place, std::string::npos);
    bytes[place + at.size() / 2] ^= 16;
    std::ofstream(file, std::ios::binary) << bytes;
  }

  TemporaryDirectory directory_;
  const std::string path_ = directory_.File("checkpoints");
};

TEST_F(CheckpointRanksTest, LoadsAtEveryOtherLayoutWithOneHash) {
  EXPECT_TRUE(kInMemory || !IsDirectory("/dev/shm"));
  const std::array<Size, 7> sizes = {{{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 2}, {4, 4}, {4, 1}}};
  std::vector<TrainingState> states;
  for (const Size& from : sizes) {
    OT_ASSERT_OK(RemoveTree(path_));
    ExpectAllOk(Save(from, 9));
    const auto world = OneRank();
    states.push_back(CheckpointStore(path_, 1, world.get()).ReadState(9).value());
    EXPECT_EQ(states.back().model_hash, states[0].model_hash) << from.world << " " << from.tensor;
    EXPECT_EQ(states.back().optimizer_hash, states[0].optimizer_hash);
    for (const Size& to : sizes) {
      SCOPED_TRACE(absl::StrCat(from.world, "/", from.tensor, " to ", to.world, "/", to.tensor));
      ExpectAllOk(Load(to, 9));
    }
  }
  ExpectAllOk(Save({2, 2}, 10));
  const auto world = OneRank();
  EXPECT_NE(CheckpointStore(path_, 1, world.get()).ReadState(10).value().model_hash,
            states[0].model_hash);
}

TEST_F(CheckpointRanksTest, FailureOfOneRankIsEverybodysAndKeepsTheOldCheckpoint) {
  ExpectAllOk(Save({3, 1}, 1));
  // Points of one rank, of the root's renaming, and of its mark.
  for (const char* point : {"rank-00000", "rank-00002", "tensors.json", "state.json", "complete"}) {
    std::atomic<int> skip{2};
    SetFileFaultHook([&](absl::string_view operation, absl::string_view path) -> absl::Status {
      const bool here = std::string(path).find(point) != std::string::npos;
      if (!here || operation != "write") return absl::OkStatus();
      // In the middle of a data file; the other files are written at once.
      if (std::string(point).rfind("rank", 0) == 0 && skip-- > 0) return absl::OkStatus();
      return absl::ResourceExhaustedError(absl::StrCat(path, ": No space left on device"));
    });
    const std::vector<absl::Status> statuses = Save({3, 1}, 2);
    SetFileFaultHook(nullptr);
    SCOPED_TRACE(point);
    ExpectError(statuses, "No space left");
    ExpectError(statuses, "step-00000002");
    EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000001"));
    ExpectAllOk(Load({3, 1}, 1));
  }
  ExpectAllOk(Save({3, 1}, 2));
  EXPECT_THAT(ListDirectory(path_).value(), ElementsAre("step-00000002"));
}

TEST_F(CheckpointRanksTest, FindsOneDamagedByteInAnyFile) {
  for (int rank = 0; rank < 4; ++rank) {
    OT_ASSERT_OK(RemoveTree(path_));
    ExpectAllOk(Save({4, 2}, 3));
    const std::string name = absl::StrCat("rank-0000", rank, ".h5");
    const CheckpointModel owned = CheckpointModel::Owned(Layout::Of(4, rank, 2), 3);
    const ShardedTensor& last = owned.optimizer.back();
    ASSERT_GT(last.tensor.bytes(), 64);
    Damage(FileOf(3, name), std::string(static_cast<const char*>(last.tensor.raw()), 64));
    for (const Size& size : {Size{4, 2}, Size{1, 1}, Size{3, 1}}) {
      ExpectError(Load(size, 3), absl::StrCat(name,
                                              ": the bytes of table.last/tables.2.weight do "
                                              "not match their checksum"));
    }
  }
  OT_ASSERT_OK(RemoveTree(FileOf(3, "rank-00002.h5")));
  ExpectError(Load({2, 1}, 3), "rank-00002.h5 is missing, one of 4 data files");
}

TEST_F(CheckpointRanksTest, RefusesPiecesThatAreNotEveryElementOnce) {
  const auto save = [&](int missing, int twice) {
    std::vector<absl::Status> statuses(2);
    RunOnRanks(2, [&](Communicator& world) {
      CheckpointModel owned = CheckpointModel::Owned(Layout::Of(2, world.rank(), 1));
      if (world.rank() == missing) owned.model.erase(owned.model.begin());
      if (world.rank() == twice) owned.model.push_back(owned.model[0]);
      statuses[static_cast<size_t>(world.rank())] =
          CheckpointStore(path_, 1, &world).Save(SomeState(4), owned.model, owned.optimizer);
    });
    return statuses;
  };
  ExpectError(save(1, -1), "the pieces of embed.weight are not every element once");
  ExpectError(save(-1, 0), "the pieces of embed.weight are not every element once");
  EXPECT_THAT(ListDirectory(path_).value(), ElementsAre());
}

TEST_F(CheckpointRanksTest, ComparesNamesAndShapesOfEveryRank) {
  ExpectAllOk(Save({4, 1}, 5));
  const auto load = [&](const auto& change) {
    std::vector<absl::Status> statuses(3);
    RunOnRanks(3, [&](Communicator& world) {
      CheckpointModel wanted = CheckpointModel::Wanted(Layout::Of(3, world.rank(), 1));
      change(world.rank(), &wanted.model);
      statuses[static_cast<size_t>(world.rank())] =
          CheckpointStore(path_, 1, &world).LoadModel(5, wanted.model);
    });
    return statuses;
  };
  ExpectError(load([](int rank, auto* model) {
                if (rank == 2) (*model)[0].name = "other.weight";
              }),
              "no tensor other.weight");
  ExpectError(load([](int rank, auto* model) {
                if (rank == 1) (*model)[0].region.logical = {56, 101};
              }),
              "embed.weight is f32 [101, 56], this configuration needs f32 [56, 101]");
  // It is enough that one rank wants a tensor; one that nobody wants is left over.
  ExpectAllOk(load([](int rank, auto* model) {
    if (rank != 1) model->erase(model->begin());
  }));
  ExpectError(load([](int, auto* model) { model->erase(model->begin()); }),
              "its model has 6 tensors, this configuration has 5; embed.weight is one");
}

TEST(CheckpointVerifiersTest, DividesTheChecking) {
  CheckpointLayout layout;
  for (int f = 0; f < 4; ++f) {
    layout.files.emplace_back();
    for (int64_t p = 0; p < 6; ++p) {
      layout.files.back().pieces.emplace_back();
      layout.files.back().pieces.back().region.count = 10 + p;
    }
  }
  // Who wrote a file checks it; with fewer ranks each has whole files, with more they share.
  for (size_t f = 0; f < 4; ++f) {
    const int rank = static_cast<int>(f);
    EXPECT_THAT(Verifiers(layout, 4)[f], ::testing::Each(rank));
    EXPECT_THAT(Verifiers(layout, 1)[f], ::testing::Each(0));
    EXPECT_THAT(Verifiers(layout, 2)[f], ::testing::Each(rank / 2));
    const std::vector<int> shared = Verifiers(layout, 8)[f];
    EXPECT_EQ(std::count(shared.begin(), shared.end(), 2 * rank), 3);
    EXPECT_EQ(std::count(shared.begin(), shared.end(), 2 * rank + 1), 3);
  }
}

}  // namespace
}  // namespace overtok

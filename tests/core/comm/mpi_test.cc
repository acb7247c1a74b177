// Communicators over processes: what communicator_test.cc asks of threads, under mpirun.
#include "core/comm/mpi.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/comm/agreement.h"
#include "tests/core/comm/exchange_checks.h"
#include "tests/support/mpi_main.h"

namespace overtok {
namespace {

using testing::World;

TEST(Mpi, TheLauncherAndMpiAgree) {
  const LaunchFacts& facts = testing::Launch();
  EXPECT_EQ(facts.launcher, "mpirun");
  EXPECT_EQ(facts.size, World().size());
  EXPECT_EQ(facts.rank, World().rank());
  EXPECT_EQ(std::to_string(facts.size), std::getenv("OMPI_COMM_WORLD_SIZE"));
  EXPECT_EQ(std::to_string(facts.local_rank), std::getenv("OMPI_COMM_WORLD_LOCAL_RANK"));
  EXPECT_EQ(facts.local_size, World().size());
  EXPECT_TRUE(CheckNodes(World(), facts).ok());
}

TEST(Mpi, UnevenAndEmptyMessages) { testing::CheckUnevenAndEmptyMessages(World()); }
TEST(Mpi, GuardsBesideOneFloat) { testing::CheckGuardsBesideOneFloat(World()); }
TEST(Mpi, EveryDType) { testing::CheckEveryDType(World()); }
TEST(Mpi, OrderOfExchangesInFlight) { testing::CheckOrderOfExchangesInFlight(World()); }
TEST(Mpi, GatherInPlace) { testing::CheckGatherInPlace(World()); }
TEST(Mpi, SumsAreEqualBits) { testing::CheckSumsAreEqualBits(World()); }
TEST(Mpi, MaximaAndFlags) { testing::CheckMaximaAndFlags(World()); }
TEST(Mpi, Broadcasts) { testing::CheckBroadcasts(World()); }
TEST(Mpi, BytesSent) { testing::CheckBytesSent(World()); }
TEST(Mpi, GroupsOfAMesh) {
  if (World().size() == 4) testing::CheckGroupsOfAMesh(World());
}

// More messages than there are tags, and more bytes than MPI sends without asking the receiver.
TEST(Mpi, ManyAndLargeMessages) {
  const int n = World().size(), me = World().rank();
  for (int64_t k = 0; k < 3000; ++k) {
    int64_t mine = k * n + me, theirs = -1;
    const Communicator::Message send{(me + 1) % n, Tensor(&mine, {1})};
    const Communicator::Message receive{(me + n - 1) % n, Tensor(&theirs, {1})};
    World().Exchange({&send, 1}, {&receive, 1}, Traffic::kTables);
    ASSERT_EQ(theirs, k * n + (me + n - 1) % n);
  }
  const int64_t count = 1 << 20;
  std::vector<float> mine(static_cast<size_t>(count), static_cast<float>(me + 1));
  std::vector<float> all(static_cast<size_t>(count * n));
  World().AllGather(Tensor(mine.data(), {count}), Tensor(all.data(), {n, count}),
                    Traffic::kWeights);
  for (int r = 0; r < n; ++r) {
    for (int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(all[static_cast<size_t>(r * count + i)], static_cast<float>(r + 1));
    }
  }
}

TEST(Mpi, AgreesOnErrors) {
  const int last = World().size() - 1;
  const absl::Status status =
      Agree(World(), World().rank() == last ? absl::NotFoundError("no file") : absl::OkStatus());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), absl::StrCat("rank ", last, ": no file"));
  EXPECT_TRUE(IsAgreed(status));
}

}  // namespace
}  // namespace overtok

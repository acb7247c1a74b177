// Ranks leave together: one rank's error is everybody's.
#include "core/comm/agreement.h"

#include <gtest/gtest.h>

#include <string>

#include "core/comm/launch.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::RunOnRanks;

TEST(Agree, IsOkWhenAllAre) {
  RunOnRanks(3, [](Communicator& world) { EXPECT_TRUE(Agree(world, absl::OkStatus()).ok()); });
}

TEST(Agree, TakesTheLowestRanksErrorAndNamesTheRank) {
  RunOnRanks(4, [](Communicator& world) {
    absl::Status mine;
    if (world.rank() == 1) mine = absl::NotFoundError("no shard 7");
    if (world.rank() == 3) mine = absl::DataLossError("shard 9 is cut short");
    const absl::Status status = Agree(world, mine);
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(status.message(), "rank 1: no shard 7");
    EXPECT_TRUE(IsAgreed(status));
    EXPECT_FALSE(IsAgreed(mine));
  });
}

TEST(Agree, TellsWhatAllRanksMetAsOneRankWould) {
  RunOnRanks(3, [](Communicator& world) {
    const absl::Status status = Agree(world, absl::InvalidArgumentError("no key sed"));
    EXPECT_EQ(status.message(), "no key sed");
    EXPECT_TRUE(IsAgreed(status));
  });
}

TEST(Agree, NamesTheRankWhereMessagesDiffer) {
  RunOnRanks(2, [](Communicator& world) {
    const absl::Status status =
        Agree(world, absl::InvalidArgumentError(world.rank() == 0 ? "a" : "b"));
    EXPECT_EQ(status.message(), "rank 0: a");
  });
}

TEST(Agree, KeepsAValueAndTheMarkThroughMoreContext) {
  RunOnRanks(2, [](Communicator& world) {
    const absl::StatusOr<int> value = Agree(world, absl::StatusOr<int>(world.rank() + 5));
    ASSERT_TRUE(value.ok());
    EXPECT_EQ(*value, world.rank() + 5);
    absl::StatusOr<int> mine = 3;
    if (world.rank() == 1) mine = absl::NotFoundError("gone");
    const absl::StatusOr<int> failed = Agree(world, mine);
    const absl::Status annotated = Annotate(failed.status(), "loading");
    EXPECT_EQ(annotated.message(), "loading: rank 1: gone");
    EXPECT_TRUE(IsAgreed(annotated));
  });
}

TEST(CheckSame, NamesBothValuesAndTheFirstRankThatDiffers) {
  RunOnRanks(4, [](Communicator& world) {
    EXPECT_TRUE(CheckSame(world, "the binary", "abc").ok());
    const absl::Status status =
        CheckSame(world, "the configuration's hash", world.rank() < 2 ? "1234" : "99");
    EXPECT_EQ(status.message(),
              "the configuration's hash is not the same on all ranks: rank 0 has 1234, rank 2 has "
              "99");
    EXPECT_TRUE(IsAgreed(status));
  });
}

TEST(CheckNodes, NamesHostsAndCountsWhereTheyAreUneven) {
  RunOnRanks(5, [](Communicator& world) {
    LaunchFacts facts;
    facts.host = world.rank() < 3 ? "north" : "south";
    const absl::Status status = CheckNodes(world, facts);
    EXPECT_TRUE(IsAgreed(status));
    EXPECT_NE(std::string(status.message()).find("north runs 3, south runs 2 of the 5"),
              std::string::npos)
        << status;
  });
  RunOnRanks(4, [](Communicator& world) {
    LaunchFacts facts;
    facts.host = world.rank() % 2 == 0 ? "north" : "south";
    EXPECT_TRUE(CheckNodes(world, facts).ok());
  });
}

}  // namespace
}  // namespace overtok

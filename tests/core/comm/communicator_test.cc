// Communicators over threads, of one rank, and requests; over processes: mpi_test.cc.
#include "core/comm/communicator.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/comm/exchange_checks.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::RunOnRanks;
using Message = Communicator::Message;

// Each check at 1 to 5 ranks.
class OverThreads : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, OverThreads, ::testing::Values(1, 2, 3, 4, 5));

TEST_P(OverThreads, UnevenAndEmptyMessages) {
  RunOnRanks(GetParam(), testing::CheckUnevenAndEmptyMessages);
}
TEST_P(OverThreads, GuardsBesideOneFloat) {
  RunOnRanks(GetParam(), testing::CheckGuardsBesideOneFloat);
}
TEST_P(OverThreads, EveryDType) { RunOnRanks(GetParam(), testing::CheckEveryDType); }
TEST_P(OverThreads, OrderOfExchangesInFlight) {
  RunOnRanks(GetParam(), testing::CheckOrderOfExchangesInFlight);
}
TEST_P(OverThreads, GatherInPlace) { RunOnRanks(GetParam(), testing::CheckGatherInPlace); }
TEST_P(OverThreads, SumsAreEqualBits) { RunOnRanks(GetParam(), testing::CheckSumsAreEqualBits); }
TEST_P(OverThreads, MaximaAndFlags) { RunOnRanks(GetParam(), testing::CheckMaximaAndFlags); }
TEST_P(OverThreads, Broadcasts) { RunOnRanks(GetParam(), testing::CheckBroadcasts); }
TEST_P(OverThreads, BytesSent) { RunOnRanks(GetParam(), testing::CheckBytesSent); }
TEST(OverFourThreads, GroupsOfAMesh) { RunOnRanks(4, testing::CheckGroupsOfAMesh); }

TEST(OneRank, IsTheIdentity) {
  const auto world = OneRank();
  testing::CheckUnevenAndEmptyMessages(*world);
  testing::CheckGuardsBesideOneFloat(*world);
  testing::CheckEveryDType(*world);
  testing::CheckGatherInPlace(*world);
  testing::CheckSumsAreEqualBits(*world);
  testing::CheckMaximaAndFlags(*world);
  testing::CheckBroadcasts(*world);
  testing::CheckBytesSent(*world);
  EXPECT_EQ(world->Divide(3)->size(), 1);
}

TEST(RequestDeathTest, AbortsWhenNobodyWaited) {
  EXPECT_DEATH({ const Request forgotten(nullptr, 1); }, "not waited for");
}

TEST(RequestDeathTest, AbortsWhenReplacedBeforeItWasWaitedFor) {
  EXPECT_DEATH(
      {
        Request first(nullptr, 1);
        first = Request();
      },
      "replaced before");
}

TEST(OneRankDeathTest, HasNoPeers) {
  const auto world = OneRank();
  float x = 0;
  const Message message{1, Tensor(&x, {1})};
  EXPECT_DEATH(world->Exchange({&message, 1}, {}, Traffic::kLoss), "rank 1 of 1");
}

TEST(OneRankDeathTest, MessagesToOneselfMustMatch) {
  const auto world = OneRank();
  float x[2] = {};
  const Message one{0, Tensor(x, {1})}, two{0, Tensor(x, {2})};
  EXPECT_DEATH(world->Exchange({&one, 1}, {&two, 1}, Traffic::kLoss), "1 against 2");
  EXPECT_DEATH(world->Exchange({&one, 1}, {}, Traffic::kLoss), "is not received");
  EXPECT_DEATH(world->Exchange({}, {&one, 1}, Traffic::kLoss), "was not sent");
}

// The threads' communicator finds misuse that a network may hide.
TEST(ThreadRanksDeathTest, SizesThatDiffer) {
  EXPECT_DEATH(RunOnRanks(2,
                          [](Communicator& world) {
                            float x[2] = {};
                            const Message message{1 - world.rank(), Tensor(x, {world.rank() + 1})};
                            const Message other{1 - world.rank(), Tensor(x, {world.rank() + 1})};
                            world.Exchange({&message, 1}, {&other, 1}, Traffic::kLoss);
                          }),
               "has . f32, expected . f32");
}

TEST(ThreadRanksDeathTest, SentMemoryThatChangesBeforeTheWait) {
  EXPECT_DEATH(RunOnRanks(2,
                          [](Communicator& world) {
                            float mine = 1, all[2];
                            Request request = world.StartAllGather(
                                Tensor(&mine, {1}), Tensor(all, {2}), Traffic::kLoss);
                            mine = 2;
                            request.Wait();
                          }),
               "changed before it was waited for");
}

TEST(ThreadRanks, ReceivedMemoryIsNoNumberBeforeTheWait) {
  RunOnRanks(2, [](Communicator& world) {
    float mine = 1, all[2] = {1, 1};
    Request request = world.StartAllGather(Tensor(&mine, {1}), Tensor(all, {2}), Traffic::kLoss);
    EXPECT_NE(all[1 - world.rank()], all[1 - world.rank()]);
    request.Wait();
    EXPECT_EQ(all[1 - world.rank()], 1);
  });
}

TEST(ThreadRanksDeathTest, ARankThatLeavesEarly) {
  EXPECT_DEATH(RunOnRanks(3,
                          [](Communicator& world) {
                            if (world.rank() != 1) world.Barrier();
                          }),
               "waits for rank 1, which has left");
}

}  // namespace
}  // namespace overtok

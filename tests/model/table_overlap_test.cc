// Rows and gradients of a divided table are under way while ranks do other things: no rank waits
// for another when they set out, exchanges in between get their own messages, and a step that is
// given up leaves nothing behind.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <vector>

#include "tests/model/table_exchange_support.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::Ids;
using testing::kPatterns;
using testing::RankTable;
using testing::RunOnRanks;
using testing::SameBits;

// A point that one thread reaches and another waits for; two seconds at most, in a test that fails.
class Milestone {
 public:
  void Reach() { reached_.set_value(); }
  bool IsReached() {
    return reached_.get_future().wait_for(std::chrono::seconds(2)) == std::future_status::ready;
  }

 private:
  std::promise<void> reached_;
};

TEST(TableOverlap, NoRankWaitsForAnotherWhenRowsOrGradientsSetOut) {
  Milestone fetched, returned;
  RunOnRanks(2, [&](Communicator& world) {
    const bool ahead = world.rank() == 0;
    RankTable part(&world, 1, DType::kF32, true);
    ASSERT_TRUE(part.Name(Ids(0, world.rank())).ok());
    EXPECT_TRUE(ahead || fetched.IsReached()) << "Fetch waits for the other rank";
    part.exchange().Fetch(part.context(), nullptr);
    if (ahead) fetched.Reach();
    EXPECT_TRUE(ahead || returned.IsReached()) << "StartReturn waits for the other rank";
    part.exchange().StartReturn();
    if (ahead) returned.Reach();
    part.exchange().ReturnGradients(part.context());
  });
}

// Every rank sends its number to all.
void ExchangeSomethingElse(Communicator& world) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  int64_t mine = 1000 + world.rank();
  world.AllGather(Tensor(&mine, {1}), Tensor(all.data(), {world.size(), 1}), Traffic::kControl);
  for (int rank = 0; rank < world.size(); ++rank)
    EXPECT_EQ(all[static_cast<size_t>(rank)], 1000 + rank);
}

void FillGradient(RankTable& part, int rank) {
  const Tensor gradient = part.table().touched.used_gradient();
  for (int64_t i = 0; i < gradient.elements(); ++i)
    gradient.data<float>()[i] =
        0.37F * static_cast<float>(i % 1013) - 50 * static_cast<float>(rank);
}

std::vector<float> Owned(RankTable& part) {
  const Tensor gradient = part.table().owned.used_gradient();
  return {gradient.data<float>(), gradient.data<float>() + gradient.elements()};
}

// One step; `apart`: every exchange has another between its start and its end.
void RunStep(RankTable& part, Communicator& world, int pattern, bool apart) {
  ASSERT_TRUE(part.Name(Ids(pattern, world.rank())).ok());
  part.exchange().Fetch(part.context(), nullptr);
  if (apart) ExchangeSomethingElse(world);
  FillGradient(part, world.rank());
  if (apart) part.exchange().StartReturn();
  if (apart) ExchangeSomethingElse(world);
  part.exchange().ReturnGradients(part.context());
}

TEST(TableOverlap, OtherExchangesInBetweenChangeNoBit) {
  for (const int ranks : {2, 3, 4}) {
    RunOnRanks(ranks, [&](Communicator& world) {
      RankTable together(&world, 1, DType::kF32, true), apart(&world, 1, DType::kF32, true);
      for (int pattern = 0; pattern < kPatterns; ++pattern) {
        RunStep(together, world, pattern, false);
        RunStep(apart, world, pattern, true);
        EXPECT_TRUE(SameBits(Owned(apart), Owned(together))) << ranks << " ranks, " << pattern;
      }
    });
  }
}

TEST(TableOverlap, AStepThatIsGivenUpLeavesNothingBehind) {
  RunOnRanks(3, [&](Communicator& world) {
    RankTable part(&world, 1, DType::kF32, true), other(&world, 1, DType::kF32, true);
    const std::unique_ptr<Communicator> one = OneRank();
    RankTable whole(one.get(), 1, DType::kF32, true);
    const auto expect_whole = [&](int pattern) {
      ASSERT_TRUE(part.Name(Ids(pattern, world.rank())).ok());
      ASSERT_TRUE(whole.Name(Ids(pattern, world.rank())).ok());
      EXPECT_TRUE(SameBits(part.Read(nullptr), whole.Read(nullptr))) << pattern;
    };
    // After the rows were asked for.
    ASSERT_TRUE(part.Name(Ids(0, world.rank())).ok());
    part.exchange().Fetch(part.context(), nullptr);
    expect_whole(1);
    // With gradients under way.
    part.exchange().StartReturn();
    expect_whole(3);
    RunStep(part, world, 0, true);
    RunStep(other, world, 0, false);
    EXPECT_TRUE(SameBits(Owned(part), Owned(other)));
    // At the end of a run, whatever is under way.
    ASSERT_TRUE(part.Name(Ids(0, world.rank())).ok());
    part.exchange().Fetch(part.context(), nullptr);
    ASSERT_TRUE(other.Name(Ids(0, world.rank())).ok());
    other.exchange().StartReturn();
  });
}

}  // namespace
}  // namespace overtok

// The two layouts of activations in a tensor group, over one to four ranks: shares put together
// whole, and whole tensors summed into shares.
#include "model/token_shards.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "core/rng.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::RunOnRanks;

constexpr int64_t kTokens = 24, kWidth = 5;  // 24: a multiple of 1, 2, 3 and 4

// Element (t, c) of what rank r has; of sizes that differ, so that orders of sums do.
float Value(int64_t r, int64_t t, int64_t c) {
  const auto words =
      Philox(static_cast<uint64_t>(r), static_cast<uint64_t>(t), static_cast<uint64_t>(c));
  return static_cast<float>((UniformOpen(words[0], words[1]) - 0.5) * std::exp2(words[2] % 9));
}

template <class T>
class Rank {
 public:
  // `width`: of the tensors; the shards were made for rows of kWidth.
  Rank(Communicator* group, int64_t width)
      : memory_(Memory::Mode::kReal),
        context_(CpuContext()),
        shards_(group, kTokens, kWidth, DTypeOf<T>(), &memory_),
        whole_(memory_.Take(Purpose::kActivations, "whole", DTypeOf<T>(), {kTokens, width})),
        share_(shards_.divided() ? memory_.Take(Purpose::kActivations, "share", DTypeOf<T>(),
                                                {shards_.share(), width})
                                 : whole_) {
    memory_.Commit(&context_);
  }
  void Fill(const Tensor& x, int64_t rank, int64_t first_token) {
    for (int64_t t = 0; t < x.dim(0); ++t) {
      for (int64_t c = 0; c < x.dim(1); ++c) {
        x.data<T>()[t * x.dim(1) + c] = static_cast<T>(Value(rank, first_token + t, c));
      }
    }
  }
  static float At(const Tensor& x, int64_t t, int64_t c) {
    return static_cast<float>(x.data<T>()[t * x.dim(1) + c]);
  }
  const Context& context() const { return context_; }
  const TokenShards& shards() const { return shards_; }
  const Tensor& whole() const { return whole_; }
  const Tensor& share() const { return share_; }

 private:
  Memory memory_;
  Context context_;
  TokenShards shards_;
  Tensor whole_, share_;
};

template <class T>
void CheckGather(int ranks, int64_t width) {
  RunOnRanks(ranks, [&](Communicator& world) {
    Rank<T> rank(&world, width);
    const TokenShards& shards = rank.shards();
    EXPECT_EQ(shards.divided(), ranks > 1);
    EXPECT_EQ(shards.share(), kTokens / ranks);
    EXPECT_EQ(shards.first(), kTokens / ranks * world.rank());
    rank.Fill(rank.share(), 0, shards.first());
    shards.Gather(rank.context(), rank.share(), rank.whole());
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t c = 0; c < width; ++c) {
        ASSERT_EQ(Rank<T>::At(rank.whole(), t, c),
                  static_cast<float>(static_cast<T>(Value(0, t, c))));
      }
    }
  });
}

TEST(TokenShards, GatherPutsSharesInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t width : {kWidth, int64_t{2}}) {
      CheckGather<float>(ranks, width);
      CheckGather<bf16>(ranks, width);
    }
  }
}

// In f32 in the order of ranks, rounded once where rows are bf16.
template <class T>
void CheckSum(int ranks, int64_t width) {
  RunOnRanks(ranks, [&](Communicator& world) {
    Rank<T> rank(&world, width);
    const TokenShards& shards = rank.shards();
    rank.Fill(rank.whole(), world.rank(), 0);
    shards.SumShares(rank.context(), rank.whole(), rank.share());
    for (int64_t t = 0; t < shards.share(); ++t) {
      for (int64_t c = 0; c < width; ++c) {
        float sum = 0;
        for (int64_t r = 0; r < ranks; ++r) {
          sum += static_cast<float>(static_cast<T>(Value(r, shards.first() + t, c)));
        }
        ASSERT_EQ(Rank<T>::At(rank.share(), t, c), static_cast<float>(static_cast<T>(sum)))
            << ranks << " ranks, token " << shards.first() + t;
      }
    }
    // What was summed is left as it was.
    for (int64_t t = 0; ranks > 1 && t < kTokens; ++t) {
      ASSERT_EQ(Rank<T>::At(rank.whole(), t, 1),
                static_cast<float>(static_cast<T>(Value(world.rank(), t, 1))));
    }
  });
}

TEST(TokenShards, SumSharesAddsInTheOrderOfRanks) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t width : {kWidth, int64_t{2}}) {
      CheckSum<float>(ranks, width);
      CheckSum<bf16>(ranks, width);
    }
  }
}

// (T - 1) / T of a micro-batch in both directions, whatever the group beside it does; on one rank
// nothing, and no memory.
TEST(TokenShards, SendWhatTheyMust) {
  for (const int ranks : {1, 2, 4}) {
    RunOnRanks(2 * ranks, [&](Communicator& world) {
      const std::unique_ptr<Communicator> group = world.Divide(world.rank() / ranks);
      Rank<float> rank(group.get(), kWidth);
      const auto sent = [&] {
        return group->bytes_sent()[static_cast<size_t>(Traffic::kActivations)];
      };
      const int64_t bytes = (ranks - 1) * (kTokens / ranks) * kWidth * 4;
      rank.shards().Gather(rank.context(), rank.share(), rank.whole());
      EXPECT_EQ(sent(), bytes);
      rank.shards().SumShares(rank.context(), rank.whole(), rank.share());
      EXPECT_EQ(sent(), 2 * bytes);
      Memory dry(Memory::Mode::kDry);
      const TokenShards planned(group.get(), kTokens, kWidth, DType::kBF16, &dry);
      EXPECT_EQ(dry.total(), bytes / 2);
    });
  }
}

TEST(TokenShards, TokensThatDoNotDivideAbort) {
  EXPECT_DEATH(
      {
        const std::unique_ptr<Communicator> group = PlannedRank(0, 5);
        Memory memory(Memory::Mode::kDry);
        const TokenShards shards(group.get(), kTokens, kWidth, DType::kF32, &memory);
      },
      "tokens % ranks");
}

}  // namespace
}  // namespace overtok

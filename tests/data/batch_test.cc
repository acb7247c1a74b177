#include "data/batch.h"

#include <gtest/gtest.h>

#include "tests/data/fixtures.h"

namespace overtok {
namespace {

struct Filled {
  std::vector<int32_t> segments;
  std::vector<float> weight;
};

Filled Fill(const ShardIdentity& identity, const std::vector<uint32_t>& tokens) {
  Filled filled{std::vector<int32_t>(tokens.size(), -1), std::vector<float>(tokens.size(), -1)};
  FillSegmentsAndWeights(identity, tokens.data(), static_cast<int64_t>(tokens.size()),
                         filled.segments.data(), filled.weight.data());
  return filled;
}

// Documents [1 2 eos], [3 eos], cut by the window: the first token after an EOS is a target.
TEST(BatchTest, SegmentsGrowAfterEosAndOnlyTheLastPositionIsUnscored) {
  const Filled filled = Fill(testing::ByteIdentity(), {1, 2, 257, 3, 257, 4});
  EXPECT_EQ(filled.segments, (std::vector<int32_t>{0, 0, 0, 1, 1, 2}));
  EXPECT_EQ(filled.weight, (std::vector<float>{1, 1, 1, 1, 1, 0}));
}

TEST(BatchTest, WindowMayStartAndEndWithEos) {
  const Filled filled = Fill(testing::ByteIdentity(), {257, 257, 1, 257});
  EXPECT_EQ(filled.segments, (std::vector<int32_t>{0, 1, 2, 2}));
  EXPECT_EQ(filled.weight, (std::vector<float>{1, 1, 1, 0}));
}

TEST(BatchTest, WithoutEosThereIsOneSegment) {
  ShardIdentity identity = testing::ByteIdentity();
  identity.eos.reset();
  EXPECT_EQ(Fill(identity, {1, 257, 2}).segments, (std::vector<int32_t>{0, 0, 0}));
}

TEST(BatchTest, PaddingIsNeitherScoredNorAttended) {
  ShardIdentity identity = testing::ByteIdentity();
  identity.pad = 299;
  const Filled filled = Fill(identity, {299, 1, 2, 257, 299, 299, 3, 299, 4, 5});
  EXPECT_EQ(filled.segments, (std::vector<int32_t>{0, 1, 1, 1, 2, 3, 4, 5, 6, 6}));
  EXPECT_EQ(filled.weight, (std::vector<float>{0, 1, 1, 0, 0, 0, 0, 0, 1, 0}));
}

TEST(BatchTest, OneToken) {
  EXPECT_EQ(Fill(testing::ByteIdentity(), {5}).weight, std::vector<float>{0});
}

}  // namespace
}  // namespace overtok

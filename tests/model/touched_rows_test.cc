// Slots of touched rows against sets, and the ids of a step: row dropout and re-hashing are pure
// functions of (seed, step, position) and of the pass.
#include "model/touched_rows.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/ops/embedding.h"
#include "model/step_ids.h"

namespace overtok {
namespace {

TEST(RowSlots, ListsDistinctRowsAndPlacesEveryId) {
  std::mt19937 generator(1);
  // Ids on both sides of 16 bits and of 31, few enough values that they repeat.
  const std::vector<uint32_t> values = {0,          1,          2047,      2048,       65535,
                                        65536,      1u << 22,   4194305,   0x7fffffff, 0x80000000,
                                        0xfffffffe, 12'799'999, 12'800'003};
  for (const size_t n : {0, 1, 2, 17, 500}) {
    std::vector<uint32_t> ids(n), slots(n), rows(values.size());
    std::set<uint32_t> expected;
    for (uint32_t& id : ids) {
      id = generator() % 5 == 0 ? kNoRow : values[generator() % values.size()];
      if (id != kNoRow) expected.insert(id);
    }
    TouchedRows touched;
    touched.rows = Tensor(rows.data(), {static_cast<int64_t>(rows.size())});
    RowSlots builder(500);
    builder.Fill(ids, &touched, slots.data());
    ASSERT_EQ(touched.count, static_cast<int64_t>(expected.size()));
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), rows.begin()));
    for (size_t i = 0; i < n; ++i) {
      if (ids[i] == kNoRow) {
        EXPECT_EQ(slots[i], kNoRow);
      } else {
        EXPECT_EQ(rows[slots[i]], ids[i]);
      }
    }
  }
}

class StepIdsTest : public ::testing::Test {
 protected:
  StepIdsTest() {
    model_.vocab_size = 1000;
    model_.ngram_embedding = NgramEmbeddingConfig();
    model_.ngram_embedding->rows = 5000;
    model_.ngram_embedding->width = 8;
    std::mt19937 generator(3);
    for (uint32_t& token : tokens_) token = generator() % 1000;
    view_ = {kRows, kLength, tokens_.data(), segments_.data(), weights_.data(), 0, 0};
  }

  std::vector<uint32_t> Rows(size_t table, int64_t step, int64_t pass, bool training = true,
                             uint64_t seed = 5) {
    Memory memory(Memory::Mode::kReal);
    StepIdsOptions options;
    options.sequences = options.own_rows = kRows;
    options.length = kLength;
    options.training = training;
    options.seed = seed;
    StepIds ids(model_, options, &memory);
    view_.step = step;
    view_.pass = pass;
    ids.Fill(view_, false);
    const auto* rows = ids.rows(table).data<uint32_t>();
    return {rows, rows + kRows * kLength};
  }

  static constexpr int64_t kRows = 40, kLength = 50;
  ModelConfig model_;
  std::vector<uint32_t> tokens_ = std::vector<uint32_t>(kRows * kLength);
  std::vector<int32_t> segments_ = std::vector<int32_t>(kRows * kLength, 0);
  std::vector<float> weights_ = std::vector<float>(kRows * kLength, 1.0F);
  BatchView view_;
};

TEST_F(StepIdsTest, RowDropoutStrikesTrainingOnlyAndAtItsRate) {
  const std::vector<uint32_t> plain = Rows(1, 0, 0);
  model_.ngram_embedding->row_dropout = 0.3;
  EXPECT_EQ(Rows(1, 0, 0, /*training=*/false), plain);
  const std::vector<uint32_t> dropped = Rows(1, 0, 0);
  int64_t count = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    if (dropped[i] == kNoRow) {
      ++count;
    } else {
      EXPECT_EQ(dropped[i], plain[i]);
    }
  }
  // Five standard deviations of a binomial count over 2000 positions: 102.
  EXPECT_NEAR(static_cast<double>(count), 600, 103);
  EXPECT_EQ(Rows(1, 0, 0), dropped);
  EXPECT_NE(Rows(1, 1, 0), dropped);
  EXPECT_NE(Rows(1, 0, 0, true, 6), dropped);
}

TEST_F(StepIdsTest, RehashingNamesOtherRowsInEveryPassButTheFirst) {
  const std::vector<uint32_t> plain = Rows(0, 0, 0);
  EXPECT_EQ(Rows(0, 0, 1), plain) << "only each_pass: rehash looks at the pass";
  model_.ngram_embedding->each_pass = NgramEmbeddingConfig::EachPass::kRehash;
  EXPECT_EQ(Rows(0, 0, 0), plain);
  const std::vector<uint32_t> second = Rows(0, 0, 1);
  EXPECT_EQ(Rows(0, 7, 1), second) << "the step has no part in it";
  EXPECT_NE(second, plain);
  EXPECT_NE(Rows(0, 0, 2), second);
  // Evaluation uses the same rows.
  EXPECT_EQ(Rows(0, 0, 1, /*training=*/false), second);
  // Equal n-grams still share a row, and rows stay below the modulus.
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_LT(second[i], 5000u);
}

}  // namespace
}  // namespace overtok

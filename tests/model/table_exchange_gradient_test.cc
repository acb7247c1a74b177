// Gradients of a divided table at their owners against sums over dense leaves, and updates of owned
// rows against those of one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/ops/ordered_sum.h"
#include "tests/model/table_exchange_support.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::Distinct;
using testing::Ids;
using testing::kCapacity;
using testing::kPatterns;
using testing::kRows;
using testing::kWidth;
using testing::RankTable;
using testing::RunOnRanks;
using testing::SameBits;

// What micro-batch `leaf` on tensor rank `of_tensor` reads.
const std::set<uint32_t>& LeafRows(int leaf, int of_tensor, int pattern) {
  thread_local std::map<std::pair<int, int>, std::set<uint32_t>> known;
  const int number = leaf * 4 + of_tensor;
  const auto [at, unknown] = known.try_emplace({number, pattern});
  if (unknown) at->second = Distinct(Ids(pattern, number));
  return at->second;
}

// The gradient that micro-batch `leaf` on tensor rank `of_tensor` gives to a row; zeros where it
// does not read it.
std::vector<float> LeafGradient(int leaf, int of_tensor, int pattern, uint32_t row) {
  std::vector<float> gradient(kWidth, 0);
  if (LeafRows(leaf, of_tensor, pattern).count(row) == 0) return gradient;
  std::mt19937 generator(row * 64 + static_cast<uint32_t>(leaf * 4 + of_tensor));
  for (float& x : gradient)
    x = std::normal_distribution<float>(0, leaf % 2 == 0 ? 100.0F : 1.0F)(generator);
  return gradient;
}

std::vector<float> Sum(std::vector<std::vector<float>> parts, OrderedSumArgs::Order order) {
  std::vector<Tensor> tensors;
  for (std::vector<float>& part : parts) tensors.emplace_back(part.data(), Shape{kWidth});
  std::vector<float> sum(kWidth);
  OrderedSum(CpuContext(), {.parts = tensors, .out = Tensor(sum.data(), {kWidth}), .order = order});
  return sum;
}

// The tree over leaves [begin, end) of one tensor rank, all rows dense.
std::vector<float> TreeGradient(int begin, int end, int of_tensor, int pattern, uint32_t row) {
  std::vector<std::vector<float>> leaves;
  for (int leaf = begin; leaf < end; ++leaf)
    leaves.push_back(LeafGradient(leaf, of_tensor, pattern, row));
  return Sum(std::move(leaves), OrderedSumArgs::Order::kTree);
}

// Names what the rank's leaves read and gives it their sums, as the model does.
void RunStep(RankTable& part, int leaves, int pattern) {
  const Layout& layout = part.mesh().layout();
  const int each = leaves / layout.data, begin = layout.data_rank * each;
  std::set<uint32_t> rows;
  for (int leaf = begin; leaf < begin + each; ++leaf) {
    const std::set<uint32_t>& more = LeafRows(leaf, layout.tensor_rank, pattern);
    rows.insert(more.begin(), more.end());
  }
  const std::vector<uint32_t> ids(rows.begin(), rows.end());
  ASSERT_LE(ids.size(), static_cast<size_t>(kCapacity));
  ASSERT_TRUE(part.Name(ids).ok());
  part.exchange().Fetch(part.context(), nullptr);
  const auto* slots = part.slots().data<uint32_t>();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::vector<float> gradient =
        TreeGradient(begin, begin + each, layout.tensor_rank, pattern, ids[i]);
    std::copy(gradient.begin(), gradient.end(),
              part.table().touched.gradient.data<float>() + slots[i] * kWidth);
  }
  part.exchange().ReturnGradients(part.context());
}

std::vector<float> Row(const Tensor& rows, int64_t i) {
  const float* begin = rows.data<float>() + i * kWidth;
  return {begin, begin + kWidth};
}

TEST(TableExchange, OwnersSumGradientsByTheTreeOfTheWholeBatch) {
  struct Case {
    int data, tensor, leaves;
  };
  for (const auto [data, tensor, leaves] :
       {Case{1, 1, 4}, Case{2, 1, 4}, Case{4, 1, 4}, Case{3, 1, 3}, Case{1, 2, 2}, Case{2, 2, 2},
        Case{2, 2, 4}, Case{1, 4, 1}, Case{5, 1, 5}}) {
    RunOnRanks(data * tensor, [&, tensor = tensor, leaves = leaves](Communicator& world) {
      RankTable part(&world, tensor, DType::kF32, true);
      const Sharding& sharding = part.table().sharding;
      for (int pattern = 0; pattern < kPatterns; ++pattern) {
        RunStep(part, leaves, pattern);
        const TouchedRows& owned = part.table().owned;
        for (int64_t i = 0; i < owned.count; ++i) {
          const auto row =
              static_cast<uint32_t>(GlobalOf(sharding, kRows, owned.rows.data<uint32_t>()[i]));
          std::vector<std::vector<float>> trees;
          std::vector<double> dense(kWidth, 0), absolute(kWidth, 0);
          for (int of_tensor = 0; of_tensor < tensor; ++of_tensor) {
            trees.push_back(TreeGradient(0, leaves, of_tensor, pattern, row));
            for (int leaf = 0; leaf < leaves; ++leaf) {
              const std::vector<float> g = LeafGradient(leaf, of_tensor, pattern, row);
              for (size_t c = 0; c < g.size(); ++c) {
                dense[c] += static_cast<double>(g[c]);
                absolute[c] += std::abs(static_cast<double>(g[c]));
              }
            }
          }
          const std::vector<float> sum = Row(owned.gradient, i);
          EXPECT_TRUE(SameBits(sum, Sum(trees, OrderedSumArgs::Order::kInOrder)))
              << world.size() << " ranks, tensor " << tensor << ", row " << row;
          // A chain of at most 8 additions, each within 2^-24 of what is summed in size.
          for (size_t c = 0; c < sum.size(); ++c)
            EXPECT_TRUE(std::abs(static_cast<double>(sum[c]) - dense[c]) <=
                        8 * 0x1p-24 * absolute[c]);
        }
      }
    });
  }
}

// Value, m and v of every row after two steps of four leaves, by logical row.
std::map<int64_t, std::string> StateAfterTwoSteps(int data, DType value) {
  std::map<int64_t, std::string> state;
  std::mutex mutex;
  RunOnRanks(data, [&](Communicator& world) {
    RankTable part(&world, 1, value, true);
    Parameter& table = part.table();
    for (int step = 0; step < 2; ++step) {
      // Another pattern leaves other rows behind: they are brought forward as a replay would.
      for (int64_t i = 0; i < table.value.dim(0); ++i)
        table.table.last.data<uint32_t>()[i] = static_cast<uint32_t>(step);
      RunStep(part, 4, step);
      TableUpdate(part.context(), {.state = table.table,
                                   .rule = {TableRule::Kind::kAdam, 0.9, 0.98, 1e-12},
                                   .rows = table.owned.used(),
                                   .gradient = table.owned.used_gradient(),
                                   .clip = {},
                                   .constants = {.correction1 = 0.5, .correction2 = 0.5},
                                   .rate = 0.01,
                                   .step = step,
                                   .random_key = 3});
    }
    const std::lock_guard<std::mutex> lock(mutex);
    for (int64_t i = 0; i < table.value.dim(0); ++i) {
      std::string& row = state[GlobalOf(table.sharding, kRows, i)];
      for (const Tensor& tensor : {table.table.value, table.table.m, table.table.v}) {
        const auto bytes = static_cast<size_t>(tensor.Rows(0, 1).bytes());
        row.append(static_cast<const char*>(tensor.raw()) + static_cast<size_t>(i) * bytes, bytes);
      }
    }
  });
  return state;
}

TEST(TableExchange, UpdatesOfOwnedRowsHaveTheBitsOfOneRank) {
  for (const DType value : {DType::kF32, DType::kBF16}) {
    const std::map<int64_t, std::string> one = StateAfterTwoSteps(1, value);
    ASSERT_EQ(one.size(), static_cast<size_t>(kRows));
    EXPECT_EQ(StateAfterTwoSteps(2, value), one) << NameOf(value);
    EXPECT_EQ(StateAfterTwoSteps(4, value), one) << NameOf(value);
  }
}

}  // namespace
}  // namespace overtok

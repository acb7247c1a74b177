// Sums of ranks' rows bit for bit against the ordered sum of dense tensors, in which rows that a
// rank does not contribute are zeros.
#include "core/ops/row_tree_sum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "core/ops/ordered_sum.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;
using testing::ThreadScope;

template <class T>
Buffer BufferOf(const std::vector<T>& values, Shape shape) {
  Buffer buffer(DTypeOf<T>(), shape);
  std::memcpy(buffer.tensor().raw(), values.data(), values.size() * sizeof(T));
  return buffer;
}

// Contributions of `trees` times `leaves` parts to `rows` rows; each part has a row with
// `probability`, and every row has one at least.
struct Contributions {
  int64_t rows, width, leaves;
  std::vector<std::vector<float>> dense;  // by part: [rows, width], zeros where it has no row
  std::vector<float> compact;
  std::vector<uint64_t> order;
  std::vector<uint32_t> starts;
  std::vector<int64_t> part_begin;

  Contributions(int64_t rows_in, int64_t width_in, int64_t trees, int64_t leaves_in,
                double probability, uint32_t seed)
      : rows(rows_in), width(width_in), leaves(leaves_in) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    const int64_t parts = trees * leaves;
    std::vector<std::vector<int64_t>> of_row(static_cast<size_t>(rows));
    int64_t n = 0;
    for (int64_t p = 0; p < parts; ++p) {
      part_begin.push_back(n);
      std::vector<float>& values = dense.emplace_back(static_cast<size_t>(rows * width), 0.0F);
      for (int64_t row = 0; row < rows; ++row) {
        const bool forced = row % parts == p;
        if (!forced && !std::bernoulli_distribution(probability)(generator)) continue;
        of_row[static_cast<size_t>(row)].push_back(n++);
        for (int64_t c = 0; c < width; ++c) {
          // Of very different sizes, so that another order is another sum; negative zeros among
          // them.
          const float x = c % 7 == 3 ? -0.0F : normal(generator) * (p % 3 == 0 ? 1000.0F : 1.0F);
          values[static_cast<size_t>(row * width + c)] = x;
          compact.push_back(x);
        }
      }
    }
    part_begin.push_back(n);
    for (size_t row = 0; row < of_row.size(); ++row) {
      starts.push_back(static_cast<uint32_t>(order.size()));
      for (const int64_t at : of_row[row])
        order.push_back(static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(at));
    }
    starts.push_back(static_cast<uint32_t>(order.size()));
  }

  std::vector<float> Sum() const {
    const ScratchContext context(0);
    const auto n = static_cast<int64_t>(order.size());
    const Buffer contributions = BufferOf(compact, {n, width}), orders = BufferOf(order, {n});
    const Buffer begins = BufferOf(starts, {rows + 1});
    Buffer out(DType::kF32, {rows, width});
    out.Poison();
    RowTreeSum(*context, {.contributions = contributions.tensor(),
                          .order = orders.tensor(),
                          .starts = begins.tensor(),
                          .part_begin = part_begin,
                          .leaves = leaves,
                          .out = out.tensor()});
    EXPECT_TRUE(out.GuardsIntact());
    const float* values = out.tensor().data<float>();
    return {values, values + out.size()};
  }

  // By the CPU: an order is the same on all devices.
  std::vector<float> DenseSum() {
    const ScratchContext context(0, CpuDevice());
    std::vector<std::vector<float>> trees;
    std::vector<Tensor> tree_tensors;
    const auto per_tree = static_cast<size_t>(leaves);
    for (size_t p = 0; p < dense.size(); p += per_tree) {
      std::vector<Tensor> parts;
      for (size_t leaf = 0; leaf < per_tree; ++leaf)
        parts.emplace_back(dense[p + leaf].data(), Shape{rows * width});
      trees.emplace_back(static_cast<size_t>(rows * width));
      OrderedSum(*context, {.parts = parts,
                            .out = Tensor(trees.back().data(), {rows * width}),
                            .order = OrderedSumArgs::Order::kTree});
    }
    for (std::vector<float>& tree : trees)
      tree_tensors.emplace_back(tree.data(), Shape{rows * width});
    std::vector<float> sum(static_cast<size_t>(rows * width));
    OrderedSum(*context, {.parts = tree_tensors, .out = Tensor(sum.data(), {rows * width})});
    return sum;
  }
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST(RowTreeSum, IsTheOrderedSumWithZerosForMissingRows) {
  uint32_t seed = 1;
  for (const int64_t trees : {1, 2, 3}) {
    for (const int64_t leaves : {1, 2, 3, 4, 5, 7, 8, 11}) {
      for (const double probability : {0.0, 0.3, 1.0}) {
        for (const int64_t width : {1, 63, 130}) {
          Contributions contributions(23, width, trees, leaves, probability, ++seed);
          EXPECT_TRUE(SameBits(contributions.Sum(), contributions.DenseSum()))
              << trees << " trees of " << leaves << ", " << probability << ", width " << width;
        }
      }
    }
  }
}

TEST(RowTreeSum, HasTheSameBitsUnderAnyNumberOfThreads) {
  Contributions contributions(701, 96, 2, 5, 0.5, 3);
  std::vector<float> one;
  {
    const ThreadScope threads(1);
    one = contributions.Sum();
  }
  const ThreadScope threads(3);
  EXPECT_TRUE(SameBits(contributions.Sum(), one));
}

TEST(RowTreeSum, KeepsNan) {
  Contributions contributions(4, 3, 1, 4, 1, 5);
  contributions.compact[4] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> sum = contributions.Sum();
  for (size_t i = 0; i < sum.size(); ++i) EXPECT_EQ(sum[i] != sum[i], i == 4) << i;
}

}  // namespace
}  // namespace overtok

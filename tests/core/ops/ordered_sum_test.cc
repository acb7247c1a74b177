// Ordered sums bit for bit against scalar loops that follow the definitions: in order, and by the
// tree as a binary counter over leaves (core/gradient_sum.h), for all storage types, part counts
// and odd sizes.
#include "core/ops/ordered_sum.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/ops/kernels.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::ScratchContext;
using Order = OrderedSumArgs::Order;

// Partial sums by the bits of a counter, the remainder joined from the smallest up.
template <class T>
T TreeSum(const std::vector<T>& leaves) {
  std::vector<T> partial;
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    T sum = leaves[leaf];
    for (size_t bits = leaf; (bits & 1) != 0; bits >>= 1) {
      sum = partial.back() + sum;
      partial.pop_back();
    }
    partial.push_back(sum);
  }
  T sum = partial.back();
  for (size_t i = partial.size() - 1; i-- > 0;) sum = partial[i] + sum;
  return sum;
}

template <class T>
T Expected(const std::vector<Buffer>& parts, int64_t i, Order order) {
  std::vector<T> leaves;
  for (const Buffer& part : parts) leaves.push_back(static_cast<T>(part.Get(i)));
  if (order == Order::kTree) return TreeSum(leaves);
  T sum = leaves[0];
  for (size_t p = 1; p < leaves.size(); ++p) sum += leaves[p];
  return sum;
}

std::vector<Buffer> Parts(DType dtype, int64_t n, int count) {
  std::vector<Buffer> parts;
  parts.reserve(static_cast<size_t>(count));
  for (int p = 0; p < count; ++p) {
    parts.emplace_back(dtype, Shape{n});
    FillNormal(parts.back(), 10 + static_cast<uint64_t>(p), p % 3 == 0 ? 100 : 1);
  }
  return parts;
}

void SumParts(const std::vector<Buffer>& parts, const Tensor& out, Order order) {
  const ScratchContext context(0,
                               out.dtype() == DType::kF64 ? CpuDevice() : testing::TestedDevice());
  std::vector<Tensor> tensors;
  for (const Buffer& part : parts) tensors.push_back(part.tensor());
  OrderedSum(*context, {.parts = tensors, .out = out, .order = order});
}

TEST(OrderedSum, IsBitEqualToScalarLoops) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    for (const Order order : {Order::kInOrder, Order::kTree}) {
      for (int count = 1; count <= 9; ++count) {
        for (const int64_t n : {int64_t{1}, int64_t{33}, int64_t{257}, int64_t{20001}}) {
          const std::vector<Buffer> parts = Parts(dtype, n, count);
          Buffer out(dtype, {n}), expected(dtype, {n});
          out.Poison();
          SumParts(parts, out.tensor(), order);
          for (int64_t i = 0; i < n; ++i) {
            expected.Set(i, dtype == DType::kF64
                                ? Expected<double>(parts, i, order)
                                : static_cast<double>(Expected<float>(parts, i, order)));
          }
          ASSERT_TRUE(out.SameBits(expected) && out.GuardsIntact())
              << NameOf(dtype) << ", " << count << " parts of " << n;
        }
      }
    }
  }
}

// Orders differ in their bits, so that the test above can tell them apart: 1 + 2^-24 is 1.
TEST(OrderedSum, OrdersDiffer) {
  const double tiny = 0x1p-24;
  const std::vector<Buffer> parts = {
      Buffer(DType::kF32, {1}, {1}), Buffer(DType::kF32, {1}, {tiny}),
      Buffer(DType::kF32, {1}, {tiny}), Buffer(DType::kF32, {1}, {tiny})};
  Buffer out(DType::kF32, {1});
  SumParts(parts, out.tensor(), Order::kInOrder);
  EXPECT_EQ(out.Get(0), 1);
  SumParts(parts, out.tensor(), Order::kTree);
  EXPECT_EQ(out.Get(0), 1 + 2 * tiny);
}

TEST(OrderedSum, TheSumMayReplaceAnyPart) {
  for (const Order order : {Order::kInOrder, Order::kTree}) {
    const std::vector<Buffer> parts = Parts(DType::kF32, 1000, 7);
    Buffer expected(DType::kF32, {1000});
    SumParts(parts, expected.tensor(), order);
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::vector<Buffer> copies(parts);
      SumParts(copies, copies[p].tensor(), order);
      EXPECT_TRUE(copies[p].SameBits(expected)) << p;
    }
  }
}

TEST(OrderedSum, ThreadsChangeNothing) {
  const std::vector<Buffer> parts = Parts(DType::kF32, 50001, 5);
  Buffer one(DType::kF32, {50001}), two(DType::kF32, {50001});
  {
    const testing::ThreadScope threads(1);
    SumParts(parts, one.tensor(), Order::kTree);
  }
  const testing::ThreadScope threads(2);
  SumParts(parts, two.tensor(), Order::kTree);
  EXPECT_TRUE(one.SameBits(two));
}

TEST(OrderedSumDeathTest, WrongPartsAreNamed) {
  const Buffer a(DType::kF32, {4}), b(DType::kF32, {5}), c(DType::kF64, {4});
  const std::vector<Buffer> longer = {a, b}, other = {a, c};
  EXPECT_DEATH(SumParts(longer, a.tensor(), Order::kTree), "5 against 4");
  EXPECT_DEATH(SumParts(other, a.tensor(), Order::kTree), "f64, expected f32");
  EXPECT_DEATH(SumParts({}, a.tensor(), Order::kTree), "parts.empty");
}

}  // namespace
}  // namespace overtok

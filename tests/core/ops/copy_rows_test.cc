// Copies of rows against plain loops over bytes: rows of all lengths and alignments, with either
// list, both and none.
#include "core/ops/copy_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;
using Start = testing::Buffer::Start;

// Buffers of bytes, as f32 in number: rows of tensors begin `offset` bytes into them.
constexpr int64_t kFromRows = 50, kToRows = 70;

std::vector<unsigned char> BytesOf(const Tensor& tensor) {
  std::vector<unsigned char> bytes(static_cast<size_t>(tensor.bytes()));
  std::memcpy(bytes.data(), tensor.raw(), bytes.size());
  return bytes;
}

struct Lists {
  bool from = false, to = false;
};

std::vector<double> Shuffled(int64_t count, int64_t limit, uint64_t seed) {
  std::vector<double> rows(static_cast<size_t>(limit));
  std::iota(rows.begin(), rows.end(), 0.0);
  std::shuffle(rows.begin(), rows.end(), std::mt19937_64(seed));
  rows.resize(static_cast<size_t>(count));
  return rows;
}

void Check(DType dtype, int64_t width, Lists lists, int64_t count, int64_t offset) {
  SCOPED_TRACE(std::string(NameOf(dtype)) + " rows of " + std::to_string(width) + ", lists " +
               std::to_string(lists.from) + std::to_string(lists.to) + ", " +
               std::to_string(count) + " of them, at byte " + std::to_string(offset));
  const int64_t row = width * SizeOf(dtype);
  const auto numbers = [&](int64_t rows) { return (rows * row + offset) / 4 + 1; };
  Buffer from(DType::kF32, {numbers(kFromRows)}, Start::kAligned);
  Buffer to(DType::kF32, {numbers(kToRows)}, Start::kAligned);
  std::mt19937_64 generator(static_cast<uint64_t>(row));
  for (Buffer* buffer : {&from, &to}) {
    auto* bytes = static_cast<unsigned char*>(buffer->tensor().raw());
    for (int64_t i = 0; i < buffer->size() * 4; ++i)
      bytes[i] = static_cast<unsigned char>(generator());
  }
  const auto view = [&](const Buffer& buffer, int64_t rows) {
    return Tensor(static_cast<char*>(buffer.tensor().raw()) + offset, dtype, {rows, width});
  };
  CopyRowsArgs args = {.from = view(from, kFromRows), .to = view(to, kToRows)};
  std::vector<double> sources(static_cast<size_t>(count)), targets(static_cast<size_t>(count));
  std::iota(sources.begin(), sources.end(), 0.0);
  std::iota(targets.begin(), targets.end(), 0.0);
  // Sources may come again.
  for (double& source : sources)
    if (lists.from) source = static_cast<double>(generator() % kFromRows);
  if (lists.to) targets = Shuffled(count, kToRows, 1);
  const Buffer from_rows(DType::kU32, {count}, sources), to_rows(DType::kU32, {count}, targets);
  if (lists.from) args.from_rows = from_rows.tensor();
  if (lists.to) args.to_rows = to_rows.tensor();
  if (!lists.from && !lists.to) args.count = count;

  const std::vector<unsigned char> before = BytesOf(from.tensor());
  std::vector<unsigned char> expected = BytesOf(to.tensor());
  for (size_t i = 0; i < sources.size(); ++i) {
    const auto bytes = static_cast<size_t>(row), at = static_cast<size_t>(offset);
    std::memcpy(expected.data() + at + static_cast<size_t>(targets[i]) * bytes,
                before.data() + at + static_cast<size_t>(sources[i]) * bytes, bytes);
  }
  const ScratchContext context(0);
  CopyRows(*context, args);
  EXPECT_EQ(BytesOf(to.tensor()), expected);
  EXPECT_EQ(BytesOf(from.tensor()), before);
  EXPECT_TRUE(to.GuardsIntact() && from.GuardsIntact());
}

constexpr Lists kAllLists[] = {{false, false}, {true, false}, {false, true}, {true, true}};

// A number a row, some packs, a warp's four packs a lane, more than one piece of a row.
TEST(CopyRows, RowsOfAllLengths) {
  for (const Lists lists : kAllLists) {
    for (const int64_t width : {1, 3, 4, 12, 64, 128, 512, 516, 1100}) {
      Check(DType::kF32, width, lists, 37, 0);
    }
    for (const int64_t width : {1, 8, 30, 200}) Check(DType::kBF16, width, lists, 50, 0);
    for (const int64_t width : {1, 5, 16}) {
      Check(DType::kF64, width, lists, 20, 0);
      Check(DType::kU8, width, lists, 20, 0);
    }
  }
}

TEST(CopyRows, RowsThatAreNotAligned) {
  for (const Lists lists : kAllLists) {
    Check(DType::kF32, 16, lists, 33, 4);
    Check(DType::kF32, 16, lists, 33, 8);
    Check(DType::kBF16, 16, lists, 33, 2);
    Check(DType::kU8, 16, lists, 33, 1);
    Check(DType::kU8, 300, lists, 33, 3);
  }
}

TEST(CopyRows, OneRowAndAll) {
  for (const Lists lists : kAllLists) {
    Check(DType::kF32, 8, lists, 1, 0);
    Check(DType::kF32, 8, lists, kFromRows, 0);
  }
}

// Columns of numbers: `last` of a table, and what a rank keeps of each row.
TEST(CopyRows, OfVectorsAndOfMoreDimensions) {
  const ScratchContext context(0);
  const Buffer from(DType::kU32, {5}, {10, 11, 12, 13, 14}), rows(DType::kU32, {3}, {4, 0, 2});
  Buffer to(DType::kU32, {3});
  to.Poison();
  CopyRows(*context, {.from = from.tensor(), .to = to.tensor(), .from_rows = rows.tensor()});
  EXPECT_EQ(to.Values(), (std::vector<double>{14, 10, 12}));
  EXPECT_EQ(to.FirstUnwritten(), -1);

  Buffer wide(DType::kF32, {4, 2, 3});
  for (int64_t i = 0; i < wide.size(); ++i) wide.Set(i, static_cast<double>(i));
  Buffer flat(DType::kF32, {2, 6});
  CopyRows(*context, {.from = wide.tensor(), .to = flat.tensor(), .count = 2});
  for (int64_t i = 0; i < flat.size(); ++i) EXPECT_EQ(flat.Get(i), static_cast<double>(i));
}

TEST(CopyRows, OfNothing) {
  const ScratchContext context(0);
  Buffer to(DType::kF32, {2, 4});
  const Buffer before = to;
  const Tensor none(nullptr, DType::kU32, {0});
  CopyRows(*context, {.from = Tensor(nullptr, DType::kF32, {0, 4}), .to = to.tensor()});
  CopyRows(*context, {.from = Tensor(nullptr, DType::kF32, {0, 4}),
                      .to = to.tensor(),
                      .from_rows = none,
                      .to_rows = none});
  EXPECT_TRUE(to.SameBits(before));
}

TEST(CopyRowsDeathTest, WhatDoesNotFit) {
  const ScratchContext context(0);
  const Buffer from(DType::kF32, {3, 4}), rows(DType::kU32, {2}, {0, 1}),
      more(DType::kU32, {3}, {0, 1, 1});
  Buffer to(DType::kF32, {2, 4}), narrow(DType::kF32, {2, 3});
  EXPECT_DEATH(CopyRows(*context, {.from = from.tensor(), .to = to.tensor(), .count = 3}),
               "the first 3 rows of \\[2, 4\\]");
  EXPECT_DEATH(CopyRows(*context, {.from = from.tensor(), .to = narrow.tensor(), .count = 1}),
               "RowElements");
  EXPECT_DEATH(CopyRows(*context, {.from = from.tensor(),
                                   .to = to.tensor(),
                                   .from_rows = rows.tensor(),
                                   .to_rows = more.tensor()}),
               "expected \\[2\\]");
  const Buffer beyond(DType::kU32, {1}, {3});
  EXPECT_DEATH(
      CopyRows(*context, {.from = from.tensor(), .to = to.tensor(), .from_rows = beyond.tensor()}),
      "a row to copy");
}

}  // namespace
}  // namespace overtok

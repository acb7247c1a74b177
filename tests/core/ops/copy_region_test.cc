// Copies of regions, element by element against the definition of where a part's elements lie: for
// every way to divide, whole parts and stretches of them, aligned rows and odd ones.
#include "core/ops/copy_region.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;
using Start = testing::Buffer::Start;
using To = CopyRegionArgs::To;

// Logical elements of the part, in the order in which its buffer has them.
std::vector<int64_t> ElementsOfPart(const Shape& logical, const Sharding& sharding) {
  const int64_t columns = logical.rank() == 2 ? logical[1] : 1;
  std::vector<int64_t> elements;
  if (sharding.split == Split::kColumns) {
    for (int64_t row = 0; row < logical[0]; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        if (PlaceOf(sharding, columns, column) >= 0) elements.push_back(row * columns + column);
      }
    }
    return elements;
  }
  std::vector<std::pair<int64_t, int64_t>> rows;  // place in the part, row
  for (int64_t row = 0; row < logical[0]; ++row) {
    const int64_t place = PlaceOf(sharding, logical[0], row);
    if (place >= 0) rows.emplace_back(place, row);
  }
  std::sort(rows.begin(), rows.end());
  for (const auto& [place, row] : rows) {
    for (int64_t column = 0; column < columns; ++column) elements.push_back(row * columns + column);
  }
  return elements;
}

// Distinct values, so that an element in another's place is seen.
void Number(Buffer& buffer, double from) {
  for (int64_t i = 0; i < buffer.size(); ++i) buffer.Set(i, from + static_cast<double>(i));
}

void Check(const Region& region, Start start) {
  SCOPED_TRACE(::testing::Message()
               << region.logical.ToString() << " split " << static_cast<int>(region.sharding.split)
               << " part " << region.sharding.part << " from " << region.begin << " on "
               << region.count);
  const std::vector<int64_t> elements = ElementsOfPart(region.logical, region.sharding);
  ASSERT_LE(region.begin + region.count, static_cast<int64_t>(elements.size()));
  const ScratchContext context(0);
  Buffer whole(DType::kF32, region.logical, start), packed(DType::kF32, {region.count}, start);
  const auto logical = [&](int64_t i) { return elements[static_cast<size_t>(region.begin + i)]; };

  Number(whole, 1);
  const Buffer before = whole;
  packed.Poison();
  CopyRegion(*context, {region, whole.tensor(), packed.tensor(), To::kPacked});
  EXPECT_TRUE(whole.SameBits(before));
  EXPECT_EQ(packed.FirstUnwritten(), -1);
  for (int64_t i = 0; i < region.count; ++i)
    ASSERT_EQ(packed.Get(i), static_cast<double>(logical(i) + 1)) << i;

  Number(packed, 1e6);
  std::vector<double> expected = whole.Values();
  for (int64_t i = 0; i < region.count; ++i)
    expected[static_cast<size_t>(logical(i))] = 1e6 + static_cast<double>(i);
  CopyRegion(*context, {region, whole.tensor(), packed.tensor(), To::kWhole});
  EXPECT_EQ(whole.Values(), expected);
  EXPECT_TRUE(whole.GuardsIntact() && packed.GuardsIntact());
}

void CheckParts(const Shape& logical, Split split, int64_t parts, int64_t unit = 1) {
  for (int64_t part = 0; part < parts; ++part) {
    const Sharding sharding{split, parts, part, unit};
    const Region whole = Region::Part(logical, sharding);
    for (const Start start : {Start::kOdd, Start::kAligned}) {
      Check(whole, start);
      if (whole.count < 8) continue;
      // Stretches that begin and end inside rows, and ones of whole packs.
      Check({logical, sharding, 3, whole.count - 5}, start);
      Check({logical, sharding, 4, (whole.count - 4) / 4 * 4}, start);
    }
  }
}

TEST(CopyRegion, Rows) {
  CheckParts({12, 16}, Split::kRows, 3, 2);
  CheckParts({13, 7}, Split::kRows, 4);
  CheckParts({37}, Split::kRows, 2);
}
TEST(CopyRegion, Columns) {
  CheckParts({9, 48}, Split::kColumns, 2, 8);
  CheckParts({9, 36}, Split::kColumns, 2, 6);
  CheckParts({5, 22}, Split::kColumns, 3);
}
// 323 rows are five blocks and a bit.
TEST(CopyRegion, Blocks) {
  CheckParts({323, 8}, Split::kBlocks, 2);
  CheckParts({323, 3}, Split::kScattered, 3);
}
TEST(CopyRegion, TheWhole) {
  CheckParts({6, 12}, Split::kWhole, 1);
  CheckParts({6, 5}, Split::kWhole, 1);
}

TEST(CopyRegion, OfNothing) {
  const ScratchContext context(0);
  Buffer whole(DType::kF32, {2, 4});
  CopyRegion(*context, {{{2, 4}, {Split::kRows, 2, 1, 1}, 0, 0},
                        whole.tensor(),
                        Tensor(nullptr, DType::kF32, {0}),
                        To::kPacked});
}

TEST(CopyRegionDeathTest, OutsideThePart) {
  const ScratchContext context(0);
  Buffer whole(DType::kF32, {2, 4}), packed(DType::kF32, {5});
  EXPECT_DEATH(
      CopyRegion(
          *context,
          {{{2, 4}, {Split::kRows, 2, 1, 1}, 0, 5}, whole.tensor(), packed.tensor(), To::kPacked}),
      "a region of 5 elements from 0 on leaves its part");
}

}  // namespace
}  // namespace overtok

// Every element of a divided tensor lies in exactly one part, at a place that leads back to it.
#include "core/sharding.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace overtok {
namespace {

constexpr Split kSplits[] = {Split::kWhole, Split::kRows, Split::kColumns, Split::kBlocks,
                             Split::kScattered};

std::string Name(const Sharding& s, int64_t n) {
  return "split " + std::to_string(static_cast<int>(s.split)) + ", n " + std::to_string(n) +
         ", part " + std::to_string(s.part) + " of " + std::to_string(s.parts) + ", unit " +
         std::to_string(s.unit);
}

// Checks that parts are a division of 0..n-1, ascending within each part.
void CheckDivision(Sharding s, int64_t n) {
  const int64_t parts = s.split == Split::kWhole ? 1 : s.parts;
  std::vector<int64_t> next(static_cast<size_t>(parts), 0);
  for (int64_t i = 0; i < n; ++i) {
    const int64_t part = PartOf(s, n, i), local = LocalOf(s, n, i);
    ASSERT_TRUE(part >= 0 && part < parts) << Name(s, n) << ", index " << i;
    // Places are taken in ascending order and without a gap, so no two indices share one.
    ASSERT_EQ(local, next[static_cast<size_t>(part)]++) << Name(s, n) << ", index " << i;
    Sharding of_part = s;
    of_part.part = part;
    ASSERT_EQ(GlobalOf(of_part, n, local), i) << Name(of_part, n);
  }
  for (int64_t part = 0; part < parts; ++part) {
    s.part = part;
    ASSERT_EQ(SizeOfPart(s, n), next[static_cast<size_t>(part)]) << Name(s, n);
  }
}

TEST(Sharding, EveryIndexHasOnePartAndOnePlace) {
  for (const Split split : kSplits) {
    for (int64_t parts = 1; parts <= 9; ++parts) {
      for (int64_t n = 0; n <= 200; ++n) {
        CheckDivision({split, parts, 0, 1}, n);
        if (HasFatalFailure()) return;
      }
      // Several rounds of blocks, with a last block and round that are not full.
      for (const int64_t n : {int64_t{1000}, int64_t{64} * 9 * 4, int64_t{64} * 9 * 4 + 1}) {
        CheckDivision({split, parts, 0, 1}, n);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Sharding, BordersLieAtMultiplesOfTheUnit) {
  for (const Split split : {Split::kRows, Split::kColumns}) {
    for (const int64_t unit : {2, 3, 16}) {
      for (int64_t parts = 1; parts <= 9; ++parts) {
        for (int64_t units = 0; units <= 13; ++units) {
          Sharding s{split, parts, 0, unit};
          CheckDivision(s, units * unit);
          if (HasFatalFailure()) return;
          for (s.part = 0; s.part < parts; ++s.part) {
            ASSERT_EQ(SizeOfPart(s, units * unit) % unit, 0) << Name(s, units * unit);
          }
        }
      }
    }
  }
}

TEST(Sharding, RangesDifferByOneUnitAtMost) {
  for (int64_t parts = 1; parts <= 9; ++parts) {
    for (int64_t n = 0; n <= 60; ++n) {
      Sharding s{Split::kRows, parts, 0, 1};
      int64_t least = n, most = 0;
      for (s.part = 0; s.part < parts; ++s.part) {
        least = std::min(least, SizeOfPart(s, n));
        most = std::max(most, SizeOfPart(s, n));
      }
      EXPECT_LE(most - least, 1) << Name(s, n);
    }
  }
}

// 101 classes in blocks of 64: rank 0 has a full block, rank 1 the rest, two ranks none.
TEST(Sharding, PartsMayBeEmpty) {
  Sharding s{Split::kBlocks, 4, 0, 1};
  const int64_t expected[] = {64, 37, 0, 0};
  for (s.part = 0; s.part < 4; ++s.part) {
    EXPECT_EQ(SizeOfPart(s, 101), expected[s.part]);
    EXPECT_EQ(LocalShape(s, {101, 3}), Shape({expected[s.part], 3}));
    int64_t runs = 0;
    ForEachRun(Region::Part({101, 3}, s),
               [&](int64_t /*logical*/, int64_t /*place*/, int64_t /*count*/) { ++runs; });
    EXPECT_EQ(runs, expected[s.part] > 0 ? 1 : 0);
  }
}

// No period of the rows may favour a part: the first of every `parts` blocks goes to all parts.
TEST(Sharding, ScatteredRoundsBeginAtDifferentParts) {
  const Sharding s{Split::kScattered, 8, 0, 1};
  const int64_t rounds = 4096, n = rounds * 8 * kShardBlock;
  std::vector<int64_t> first(8, 0);
  for (int64_t round = 0; round < rounds; ++round) {
    ++first[static_cast<size_t>(PartOf(s, n, round * 8 * kShardBlock))];
  }
  // 512 each on average, standard deviation 21: six of them.
  for (const int64_t count : first) EXPECT_TRUE(count > 386 && count < 638) << count;
}

TEST(Sharding, NumbersAbove32BitsComeBack) {
  const int64_t n = (int64_t{1} << 40) + 12345;
  for (const Split split : {Split::kRows, Split::kColumns, Split::kBlocks, Split::kScattered}) {
    for (const int64_t parts : {1, 3, 7, 1024}) {
      Sharding s{split, parts, 0, 1};
      for (const int64_t i :
           {int64_t{0}, int64_t{1} << 31, (int64_t{1} << 32) - 1, int64_t{1} << 32,
            (int64_t{1} << 32) + 77, (int64_t{1} << 39) + 3, n - 1}) {
        s.part = PartOf(s, n, i);
        ASSERT_TRUE(s.part >= 0 && s.part < parts);
        const int64_t local = LocalOf(s, n, i);
        ASSERT_TRUE(local >= 0 && local < SizeOfPart(s, n)) << Name(s, n) << ", index " << i;
        EXPECT_EQ(GlobalOf(s, n, local), i) << Name(s, n);
      }
      int64_t sum = 0;
      for (s.part = 0; s.part < parts; ++s.part) sum += SizeOfPart(s, n);
      EXPECT_EQ(sum, n) << Name(s, n);
    }
  }
}

// The logical element of each element of a part, without ForEachRun.
std::vector<int64_t> LogicalElements(const Shape& logical, const Sharding& s) {
  std::vector<int64_t> elements;
  const int64_t columns = logical.rank() == 2 ? logical[1] : 1;
  for (int64_t row = 0; row < logical[0]; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t divided = s.split == Split::kColumns ? column : row;
      if (PartOf(s, DividedSize(s, logical), divided) != s.part && s.split != Split::kWhole) {
        continue;
      }
      elements.push_back(row * columns + column);
    }
  }
  return elements;
}

TEST(ForEachRun, CoversEveryRegionExactlyAndInOrder) {
  const Shape shapes[] = {{1}, {130}, {1, 1}, {7, 10}, {130, 3}, {300, 2}, {3, 300}, {0, 4}};
  for (const Split split : kSplits) {
    for (const Shape& logical : shapes) {
      if (split == Split::kColumns && logical.rank() != 2) continue;
      for (const int64_t parts : {1, 2, 3, 5}) {
        std::vector<int64_t> holders(static_cast<size_t>(logical.elements()), 0);
        for (int64_t part = 0; part < parts; ++part) {
          const Sharding s{split, parts, part, 1};
          const std::vector<int64_t> expected = LogicalElements(logical, s);
          const Region whole = Region::Part(logical, s);
          ASSERT_EQ(whole.count, static_cast<int64_t>(expected.size())) << Name(s, logical[0]);
          for (const int64_t element : expected) ++holders[static_cast<size_t>(element)];
          // The whole part, and regions that begin and end inside rows and blocks.
          for (const int64_t begin : {int64_t{0}, int64_t{1}, whole.count / 3}) {
            for (const int64_t end : {whole.count, whole.count - 1, whole.count * 2 / 3}) {
              if (begin > end) continue;
              Region region = whole;
              region.begin = begin;
              region.count = end - begin;
              int64_t at = 0, last_end = -1;
              ForEachRun(region, [&](int64_t logical_begin, int64_t place, int64_t count) {
                ASSERT_EQ(place, at);
                ASSERT_GT(count, 0);
                ASSERT_LE(last_end, logical_begin) << "runs go backwards";
                for (int64_t i = 0; i < count; ++i) {
                  ASSERT_EQ(logical_begin + i, expected[static_cast<size_t>(begin + at + i)])
                      << Name(s, logical[0]) << ", shape " << logical.ToString();
                }
                at += count;
                last_end = logical_begin + count;
              });
              ASSERT_EQ(at, region.count) << Name(s, logical[0]);
              if (HasFatalFailure()) return;
            }
          }
        }
        for (const int64_t count : holders) {
          ASSERT_EQ(count, split == Split::kWhole ? parts : 1) << logical.ToString();
        }
      }
    }
  }
}

TEST(ForEachRun, ReachesElementsAbove32Bits) {
  const Shape logical{int64_t{1} << 26, 1000};
  const Sharding s{Split::kBlocks, 4, 3, 1};
  Region region = Region::Part(logical, s);
  EXPECT_EQ(region.count, (int64_t{1} << 24) * 1000);
  region.begin = region.count - 64 * 1000 - 500;
  region.count = 1000;
  std::vector<int64_t> begins, counts;
  ForEachRun(region, [&](int64_t logical_begin, int64_t /*place*/, int64_t count) {
    begins.push_back(logical_begin);
    counts.push_back(count);
  });
  // The last half row of the block before the last, then the first of the last.
  const int64_t last_row = (int64_t{1} << 26) - 64;
  EXPECT_EQ(begins, (std::vector<int64_t>{(last_row - 3 * 64) * 1000 - 500, last_row * 1000}));
  EXPECT_EQ(counts, (std::vector<int64_t>{500, 500}));
}

TEST(ShardingDeathTest, RefusesWhatCannotBeDivided) {
  EXPECT_DEATH(PartOf({Split::kRows, 2, 0, 1}, 4, 4), "check failed");
  EXPECT_DEATH(LocalShape({Split::kRows, 2, 0, 3}, {4, 2}), "check failed");
  EXPECT_DEATH(LocalShape({Split::kColumns, 2, 0, 1}, {4}), "check failed");
}

}  // namespace
}  // namespace overtok

// The devices' radix sort, run by the emulator, against std::stable_sort: sizes that no tile
// divides, ids of one byte to four, all ids equal, kNoRow, and what must not be touched.
#include "core/cuda/radix_sort.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "core/ops/embedding.h"

namespace overtok {
namespace {

constexpr uint64_t kUntouched = 0xA5A5A5A5A5A5A5A5;
constexpr int64_t kGuard = 8;

// Pairs of (id, position): the position tells equal ids apart.
std::vector<uint64_t> PairsOf(const std::vector<uint32_t>& ids) {
  std::vector<uint64_t> pairs;
  for (size_t i = 0; i < ids.size(); ++i) pairs.push_back(static_cast<uint64_t>(ids[i]) << 32 | i);
  return pairs;
}

void ExpectSorted(const std::vector<uint64_t>& pairs, uint32_t largest) {
  const auto n = static_cast<int64_t>(pairs.size());
  std::vector<uint64_t> a(pairs), b(pairs.size(), kUntouched);
  a.resize(pairs.size() + kGuard, kUntouched);
  b.resize(pairs.size() + kGuard, kUntouched);
  const auto counts_size = static_cast<size_t>(emulated::RadixSortCounts(n));
  std::vector<unsigned> counts(counts_size + kGuard, 0xA5A5A5A5U);
  const Context context(EmulatedDevice());
  const uint64_t* sorted =
      emulated::RadixSort(context, a.data(), b.data(), counts.data(), n, largest);
  ASSERT_TRUE(sorted == a.data() || sorted == b.data());
  std::vector<uint64_t> expected(pairs);
  std::stable_sort(expected.begin(), expected.end(),
                   [](uint64_t x, uint64_t y) { return x >> 32 < y >> 32; });
  const std::vector<uint64_t> actual(sorted, sorted + n);
  EXPECT_EQ(actual, expected) << n << " pairs, ids up to " << largest;
  for (size_t i = 0; i < kGuard; ++i) {
    EXPECT_EQ(a[pairs.size() + i], kUntouched);
    EXPECT_EQ(b[pairs.size() + i], kUntouched);
    EXPECT_EQ(counts[counts_size + i], 0xA5A5A5A5U);
  }
}

std::vector<uint32_t> RandomIds(int64_t n, uint64_t below) {
  std::mt19937_64 random(static_cast<uint64_t>(n) + below);
  std::vector<uint32_t> ids(static_cast<size_t>(n));
  for (uint32_t& id : ids) id = static_cast<uint32_t>(random() % below);
  return ids;
}

TEST(RadixSort, SortsAnySizeByOneByteToFour) {
  for (const int64_t n : {1, 33, 2047, 2049, 4500}) {
    for (const uint64_t below : {uint64_t{2}, uint64_t{257}, uint64_t{70'000}, uint64_t{1} << 32}) {
      ExpectSorted(PairsOf(RandomIds(n, below)), static_cast<uint32_t>(below - 1));
    }
  }
}

// More tiles than the 32 threads that find the places of one digit's counts.
TEST(RadixSort, MoreTilesThanAWarpHasThreads) {
  ExpectSorted(PairsOf(RandomIds(67 * emulated::kSortTile + 5, 200)), 199);
}

TEST(RadixSort, EqualIdsKeepTheirOrder) {
  for (const uint32_t id : {0U, 3U, 65'536U, kNoRow})
    ExpectSorted(PairsOf(std::vector<uint32_t>(5000, id)), std::max(id, 1U));
  // One id for a third of all, as an end-of-text token may be, and kNoRow for another third.
  std::vector<uint32_t> ids = RandomIds(6000, 100'000);
  for (size_t i = 0; i < ids.size(); i += 3) ids[i] = 128'000;
  for (size_t i = 1; i < ids.size(); i += 3) ids[i] = kNoRow;
  ExpectSorted(PairsOf(ids), kNoRow);
}

// The lower half has no part in the order, and words come back whole.
TEST(RadixSort, LowerHalvesAreCarriedAlong) {
  std::vector<uint64_t> words;
  std::mt19937_64 random(1);
  for (int i = 0; i < 3000; ++i) words.push_back(random() % 5 << 32 | (random() & 0xffffffffU));
  ExpectSorted(words, 4);
}

// Only passes that the largest id asks for: none when all are 0.
TEST(RadixSort, ZerosAndNothingNeedNoPass) {
  ExpectSorted(PairsOf(std::vector<uint32_t>(100, 0)), 0);
  ExpectSorted({}, 1000);
}

}  // namespace
}  // namespace overtok

// The hash of a tensor is the same however it is divided, and another for other bits.
#include "trainer/checkpoint_hash.h"

#include <chrono>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace overtok {
namespace {

std::vector<uint32_t> RandomWords(size_t n) {
  std::mt19937 draw(3);
  std::vector<uint32_t> words(n);
  for (uint32_t& word : words) word = static_cast<uint32_t>(draw());
  return words;
}

uint64_t WholeHash(std::vector<uint32_t>& words, const Shape& shape) {
  return PositionHash(Region::Part(shape, {}), Tensor(words.data(), shape));
}

// The sum of docs/formats/checkpoint.md, element by element; SplitMix64 as a generator.
TEST(PositionHashTest, IsTheDocumentedSum) {
  std::vector<uint32_t> words = RandomWords(1000);
  uint64_t state = 0;
  std::vector<uint64_t> outputs;
  for (int i = 0; i < 300; ++i) {
    state += 0x9e3779b97f4a7c15u;
    uint64_t x = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    outputs.push_back(x ^ (x >> 31));
  }
  uint64_t sum = 0;
  for (size_t p = 0; p < words.size(); ++p) {
    sum += (outputs[p / 256 + 256] | 1) * (outputs[p % 256] | 1) * words[p];
  }
  EXPECT_EQ(WholeHash(words, {1000}), sum);
}

TEST(PositionHashTest, DoesNotDependOnTheDivision) {
  const Shape shape = {333, 39};
  std::vector<uint32_t> words = RandomWords(333 * 39);
  const uint64_t whole = WholeHash(words, shape);
  for (const Split split : {Split::kRows, Split::kColumns, Split::kBlocks, Split::kScattered}) {
    for (const int64_t parts : {1, 2, 3, 7}) {
      uint64_t sum = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const Region all = Region::Part(shape, {split, parts, part, 1});
        // In three stretches that begin anywhere.
        for (int64_t third = 0; third < 3; ++third) {
          Region region = all;
          region.begin = all.count * third / 3;
          region.count = all.count * (third + 1) / 3 - region.begin;
          std::vector<uint32_t> local;
          ForEachRun(region, [&](int64_t logical, int64_t, int64_t count) {
            local.insert(local.end(), words.begin() + logical, words.begin() + logical + count);
          });
          if (region.count > 0) {
            sum += PositionHash(region, Tensor(local.data(), {region.count}));
          }
        }
      }
      EXPECT_EQ(sum, whole) << static_cast<int>(split) << " " << parts;
    }
  }
}

TEST(PositionHashTest, SeesEveryBitAndEveryExchange) {
  const Shape shape = {600};
  std::vector<uint32_t> words = RandomWords(600);
  std::set<uint64_t> seen = {WholeHash(words, shape)};
  size_t cases = 1;
  for (size_t i = 0; i < words.size(); ++i) {
    for (int bit = 0; bit < 32; ++bit, ++cases) {
      words[i] ^= 1u << bit;
      seen.insert(WholeHash(words, shape));
      words[i] ^= 1u << bit;
    }
  }
  // Sign bits of two floats: the difference is the same number of half the range.
  for (size_t i = 1; i < words.size(); ++i, ++cases) {
    words[0] ^= 1u << 31;
    words[i] ^= 1u << 31;
    seen.insert(WholeHash(words, shape));
    words[0] ^= 1u << 31;
    words[i] ^= 1u << 31;
  }
  // Exchanged elements, within a block of 256 and across.
  for (size_t i = 1; i < words.size(); ++i, ++cases) {
    std::swap(words[0], words[i]);
    seen.insert(WholeHash(words, shape));
    std::swap(words[0], words[i]);
  }
  EXPECT_EQ(seen.size(), cases);
}

TEST(PositionHashTest, TakesElementsOfAllSizes) {
  std::vector<uint32_t> words = RandomWords(512);
  std::set<uint64_t> seen;
  const Tensor tensors[] = {Tensor(reinterpret_cast<uint8_t*>(words.data()), {2048}),
                            Tensor(reinterpret_cast<uint16_t*>(words.data()), {1024}),
                            Tensor(words.data(), {512})};
  for (const Tensor& tensor : tensors) {
    seen.insert(PositionHash(Region::Part(tensor.shape(), {}), tensor));
  }
  EXPECT_EQ(seen.size(), 3u);
  // Eight bytes are two elements of four.
  const Tensor doubles(words.data(), DType::kF64, {256});
  EXPECT_EQ(PositionHash(Region::Part({256}, {}), doubles), WholeHash(words, {512}));
  // Half of them at a time.
  const Region left{{256}, {}, 0, 100}, right{{256}, {}, 100, 156};
  EXPECT_EQ(PositionHash(left, Tensor(words.data(), DType::kF64, {100})) +
                PositionHash(right, Tensor(words.data() + 200, DType::kF64, {156})),
            WholeHash(words, {512}));
}

TEST(TensorHashTest, KnowsNameTypeShapeAndSum) {
  const std::set<uint64_t> seen = {
      TensorHash("a", DType::kF32, {2, 3}, 0), TensorHash("b", DType::kF32, {2, 3}, 0),
      TensorHash("a", DType::kU32, {2, 3}, 0), TensorHash("a", DType::kF32, {3, 2}, 0),
      TensorHash("a", DType::kF32, {2, 3}, 1)};
  EXPECT_EQ(seen.size(), 5u);
}

// Many times faster than any disk; the bound holds on a busy machine and in a debug build.
TEST(PositionHashTest, IsFast) {
  std::vector<uint32_t> words = RandomWords(size_t{1} << 22);
  const auto begin = std::chrono::steady_clock::now();
  uint64_t hash = 0;
  for (int i = 0; i < 4; ++i) hash += WholeHash(words, {int64_t{1} << 22});
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  RecordProperty("gigabytes_per_second", std::to_string(4 * 16.8e6 / 1e9 / seconds));
  EXPECT_NE(hash, 0u);
  EXPECT_LE(seconds, 4 * 16.8e6 / 50e6);
}

}  // namespace
}  // namespace overtok

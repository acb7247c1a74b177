// Every function of core/cuda/kernel.h, used as it is meant to be: results against plain loops,
// under the emulation and, where it is built, under the checker, which must not object.
#include "tests/core/cuda/emulation/primitives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "tests/core/cuda/emulation/kernel_array.h"

namespace overtok {
namespace {

using testing::KernelArray;

struct Flavour {
  const char* name;
  const testing::PrimitiveKernels& (*kernels)();
};
std::vector<Flavour> Flavours() {
  std::vector<Flavour> flavours = {{"emulated", emulated::Primitives}};
#if defined(OVERTOK_TEST_CHECKED)
  flavours.push_back({"checked", checked::Primitives});
#endif
  return flavours;
}

class Primitives : public ::testing::TestWithParam<Flavour> {
 protected:
  const testing::PrimitiveKernels& run_ = GetParam().kernels();
  const Context context_{EmulatedDevice()};
};
INSTANTIATE_TEST_SUITE_P(Flavours, Primitives, ::testing::ValuesIn(Flavours()),
                         [](const auto& flavour) { return std::string(flavour.param.name); });

template <class T>
std::vector<T> Random(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(static_cast<size_t>(n));
  for (T& value : values) value = T(static_cast<float>(normal(random)));
  return values;
}
// Small integers: sums in any order are exact.
std::vector<float> Integers(int64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 201) - 100);
  return values;
}

template <class T, class F>
void CheckShuffles(const Context& context, const F& run) {
  KernelArray<T> in("in", Random<T>(64, 1)), by_xor("xor", 64), from("from", 64), up("up", 64);
  run(context, in.data(), by_xor.data(), from.data(), up.data());
  for (int i = 0; i < 64; ++i) {
    const int warp = i / 32 * 32, lane = i % 32;
    EXPECT_TRUE(by_xor[i] == in[warp + (lane ^ 5)]) << i;
    EXPECT_TRUE(from[i] == in[warp + (3 * lane + 1) % 32]) << i;
    EXPECT_TRUE(up[i] == in[lane < 4 ? i : i - 4]) << i;
  }
}
TEST_P(Primitives, ShufflesMoveValuesOfFourAndEightBytes) {
  CheckShuffles<float>(context_, run_.shuffle_floats);
  CheckShuffles<double>(context_, run_.shuffle_doubles);
}

TEST_P(Primitives, VotesSetTheBitOfEveryLane) {
  KernelArray<float> in("in", Random<float>(64, 2));
  KernelArray<unsigned> ballots("ballots", 64);
  KernelArray<int> bits("bits", 64);
  run_.vote(context_, in.data(), ballots.data(), bits.data());
  for (int i = 0; i < 64; ++i) {
    unsigned expected = 0;
    int count = 0;
    for (int lane = 0; lane < 32; ++lane) {
      if (in[i / 32 * 32 + lane] > 0) {
        expected |= 1U << lane;
        ++count;
      }
    }
    EXPECT_EQ(ballots[i], expected) << i;
    EXPECT_EQ(bits[i], count) << i;
  }
}

TEST_P(Primitives, SumsAndLargestOfWarpsAndBlocks) {
  constexpr int kThreads = 160;
  KernelArray<float> in("in", Integers(kThreads, 3));
  KernelArray<float> warp_sum("warp_sum", kThreads), block_sum("block_sum", kThreads),
      warp_max("warp_max", kThreads), block_max("block_max", kThreads);
  run_.sums(context_, in.data(), warp_sum.data(), block_sum.data(), warp_max.data(),
            block_max.data());
  float all = 0, most = in[0];
  for (int i = 0; i < kThreads; ++i) {
    all += in[i];
    most = std::max(most, in[i]);
  }
  for (int i = 0; i < kThreads; ++i) {
    float sum = 0, largest = in[i];
    for (int lane = 0; lane < 32; ++lane) {
      sum += in[i / 32 * 32 + lane];
      largest = std::max(largest, in[i / 32 * 32 + lane]);
    }
    EXPECT_TRUE(warp_sum[i] == sum && warp_max[i] == largest) << i;
    EXPECT_TRUE(block_sum[i] == all && block_max[i] == most) << i;
  }
}

TEST_P(Primitives, AtomicsOfAllBlocksAdd) {
  constexpr int64_t kBlocks = 9, kCount = kBlocks * 64;
  std::mt19937_64 random(4);
  std::vector<uint32_t> values(kCount);
  for (uint32_t& value : values) value = static_cast<uint32_t>(random() % 29);
  KernelArray<uint32_t> in("in", values);
  KernelArray<unsigned> histogram("histogram", 16), bits("bits", 1);
  KernelArray<int> sum("sum", 1);
  KernelArray<uint64_t> wide_sum("wide_sum", 1);
  run_.atomics(context_, in.data(), kBlocks, histogram.data(), sum.data(), wide_sum.data(),
               bits.data());
  std::vector<unsigned> counts(16);
  int total = 0;
  unsigned all_bits = 0;
  for (const uint32_t value : values) {
    ++counts[value % 16];
    total += static_cast<int>(value);
    all_bits |= 1U << value;
  }
  for (int i = 0; i < 16; ++i) EXPECT_EQ(histogram[i], counts[static_cast<size_t>(i)]) << i;
  EXPECT_EQ(sum[0], total);
  EXPECT_EQ(wide_sum[0], static_cast<uint64_t>(total) << 32);
  EXPECT_EQ(bits[0], all_bits);
}

TEST_P(Primitives, TileProductsAgreeWithDouble) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    KernelArray<bf16> a("a", Random<bf16>(256, 10 + seed)), b("b", Random<bf16>(256, 40 + seed));
    KernelArray<float> d("d", 256);
    for (const bool transposed : {false, true}) {
      run_.product(context_, a.data(), b.data(), transposed, d.data());
      for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 16; ++column) {
          double sum = 0, magnitude = 0;
          for (int k = 0; k < 16; ++k) {
            const double product = static_cast<double>(static_cast<float>(a[row * 16 + k])) *
                                   static_cast<double>(static_cast<float>(
                                       b[transposed ? column * 16 + k : k * 16 + column]));
            sum += product;
            magnitude += std::abs(product);
          }
          // Products of bf16 are exact in f32; 16 additions round by 2^-24 of a partial sum each.
          EXPECT_TRUE(std::abs(static_cast<double>(d[row * 16 + column]) - sum) <=
                      16 * std::ldexp(magnitude, -24))
              << seed << " " << transposed << " " << row << " " << column;
        }
      }
    }
  }
}

TEST_P(Primitives, AsynchronousCopiesArriveGroupByGroup) {
  constexpr int64_t kRows = 7, kValid = 5;
  KernelArray<float> rows("rows", Integers(kRows * 128, 5));
  KernelArray<float> sums("sums", kRows);
  run_.pipeline(context_, rows.data(), kRows, kValid, sums.data());
  for (int64_t row = 0; row < kRows; ++row) {
    float expected = 0;
    for (int64_t i = 0; i < 128 && row < kValid; ++i) expected += rows[row * 128 + i];
    EXPECT_TRUE(sums[row] == expected) << row;
  }
}

TEST_P(Primitives, SyncWarpOrdersWhatLanesShare) {
  std::vector<int> values(32);
  for (int i = 0; i < 32; ++i) values[static_cast<size_t>(i)] = 1000 * i;
  KernelArray<int> in("in", values), out("out", 32);
  run_.warp_exchange(context_, in.data(), out.data());
  for (int i = 0; i < 32; ++i) EXPECT_EQ(out[i], 1000 * ((i + 100) % 32) + 100) << i;
}

TEST_P(Primitives, PairsAreRoundedToBf16) {
  KernelArray<float> in("in", Random<float>(64, 6));
  KernelArray<uint32_t> out("out", 32);
  run_.pack_pairs(context_, in.data(), out.data());
  for (int i = 0; i < 32; ++i) {
    const uint32_t expected = static_cast<uint32_t>(bf16(in[2 * i]).bits) |
                              static_cast<uint32_t>(bf16(in[2 * i + 1]).bits) << 16;
    EXPECT_EQ(out[i], expected) << i;
  }
}

}  // namespace
}  // namespace overtok

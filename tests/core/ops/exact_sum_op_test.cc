// Exact sums by ops against ExactSum on the host, bit for bit: in any order, from one call or many,
// by one block of a kernel or several, over ranks; and the flag of what is not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/exact_sum.h"
#include "core/ops/exact_sum.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::ScratchContext;

constexpr int kWords = ExactSum::kWords;
constexpr double kMax = std::numeric_limits<double>::max();
constexpr double kTiny = std::numeric_limits<double>::denorm_min();
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Values over `lowest` to `highest` binary orders, of both signs.
std::vector<double> Random(uint64_t seed, int64_t count, int lowest, int highest) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(lowest, highest);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i)
    values.push_back(std::ldexp(mantissa(generator), exponent(generator)));
  return values;
}

// Words of sums in a guarded buffer of numbers of their size.
class Words {
 public:
  Words(int64_t ranks, int64_t sums) : buffer_(DType::kF64, {ranks * sums, kWords}) {
    buffer_.Poison();
  }
  Tensor tensor() const {
    return Tensor(buffer_.tensor().raw(), DType::kI64, buffer_.tensor().shape());
  }
  Tensor OfRank(int64_t rank, int64_t sums) const { return tensor().Rows(rank * sums, sums); }
  Tensor OfRanks(int64_t ranks, int64_t sums) const {
    return tensor().Reshape({ranks, sums, kWords});
  }
  void ExpectWhole() const {
    EXPECT_EQ(buffer_.FirstUnwritten(), -1);
    EXPECT_TRUE(buffer_.GuardsIntact());
  }

 private:
  Buffer buffer_;
};

bool SameDouble(double a, double b) {
  return std::isnan(b) ? std::isnan(a) : std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

std::vector<double> RoundAll(const Context& context, const Words& words, int64_t ranks,
                             int64_t sums) {
  Buffer out(DType::kF64, {sums});
  out.Poison();
  RoundExact(context, {words.OfRanks(ranks, sums), out.tensor()});
  EXPECT_EQ(out.FirstUnwritten(), -1);
  EXPECT_TRUE(out.GuardsIntact());
  return out.Values();
}

std::vector<ExactSum> HostSums(const std::vector<double>& values, int64_t sums) {
  std::vector<ExactSum> host(static_cast<size_t>(sums));
  for (size_t i = 0; i < values.size(); ++i) host[i % host.size()].Add(values[i]);
  return host;
}

void ExpectWords(const Tensor& words, std::vector<ExactSum> host) {
  for (size_t s = 0; s < host.size(); ++s) {
    const int64_t* actual = words.data<int64_t>() + s * kWords;
    const std::span<int64_t> expected = host[s].words();
    for (size_t w = 0; w < kWords; ++w) ASSERT_EQ(actual[w], expected[w]) << s << " word " << w;
  }
}

// One call, and the result of rounding.
void Check(const std::vector<double>& values, int64_t sums = 1) {
  const ScratchContext context(0);
  const auto n = static_cast<int64_t>(values.size());
  const Buffer in(DType::kF64, {n}, values);
  const Words words(1, sums);
  AddExact(*context, {.values = in.tensor(), .words = words.tensor()});
  words.ExpectWhole();
  const std::vector<ExactSum> host = HostSums(values, sums);
  ExpectWords(words.tensor(), host);
  const std::vector<double> rounded = RoundAll(*context, words, 1, sums);
  for (size_t s = 0; s < host.size(); ++s)
    EXPECT_TRUE(SameDouble(rounded[s], host[s].Round()))
        << s << ": " << rounded[s] << ", expected " << host[s].Round();
}

TEST(ExactSumOps, ValuesOfAllKinds) {
  Check({0});
  Check({-0.0, 0, -0.0});
  Check({1e308, -1e308, 1e-300});
  Check({kMax, kMax, -kMax, 3});
  Check({kMax, kMax});
  Check({-kMax, -kMax, -kMax});
  Check({kMax, std::ldexp(1, 970)});          // rounds to infinity
  Check({kMax, std::ldexp(1, 970), -kTiny});  // does not
  Check({kTiny, kTiny, kTiny});
  Check({std::numeric_limits<double>::min(), -kTiny});
  Check({kTiny, -kTiny});
  Check({1, 0x1p-53});
  Check({1, 0x1p-53, kTiny});
  Check({-1, -0x1p-53, -kTiny});
  Check({2 - 0x1p-52, 0x1p-53});
  Check({-5, 2});
}

TEST(ExactSumOps, WhatIsNotFiniteDecides) {
  Check({1, kNan, 2});
  Check({kInfinity, -kInfinity});
  Check({kInfinity, kNan, -kInfinity});
  Check({kInfinity, -kMax, kInfinity});
  Check({1, -kInfinity});
  // Each in the sum that it belongs to.
  Check({1, kNan, kInfinity, -kInfinity, 2, 3, 4, 5}, 4);
}

// A warp, a block's round, its stretch and several stretches, and one value more or less.
TEST(ExactSumOps, AnyCount) {
  for (const int64_t n : {1, 2, 31, 32, 33, 255, 257, 1023, 1024, 1025, 8191, 8192, 8193, 20000}) {
    SCOPED_TRACE(n);
    Check(Random(static_cast<uint64_t>(n), n, -40, 40));
  }
  Check(Random(1, 3000, -1074, 1000));
  Check(std::vector<double>(10000, 0.0));
  Check(std::vector<double>(10000, -1 - 0x1p-52));
}

TEST(ExactSumOps, SeveralSums) {
  for (const int64_t sums : {2, 3, 12, 13, 40}) {
    SCOPED_TRACE(sums);
    Check(Random(static_cast<uint64_t>(sums), sums, -40, 40), sums);
    Check(Random(static_cast<uint64_t>(sums), sums * 257, -300, 300), sums);
  }
  Check(Random(5, 3 * 8500, -60, 60), 3);  // stretches of each
}

TEST(ExactSumOps, OrderThreadsAndCallsChangeNoBit) {
  constexpr int64_t kSums = 3, kEach = 9000;
  std::vector<double> values = Random(7, kSums * kEach, -300, 300);
  const std::vector<ExactSum> host = HostSums(values, kSums);
  const ScratchContext context(0);
  std::mt19937_64 generator(5);
  for (int i = 0; i < 3; ++i) {
    const testing::ThreadScope threads(i + 1);
    // Each sum's values in an order of its own.
    for (int64_t s = 0; s < kSums; ++s) {
      for (int64_t k = kEach - 1; k > 0; --k) {
        const auto other = static_cast<int64_t>(generator() % static_cast<uint64_t>(k + 1));
        std::swap(values[static_cast<size_t>(k * kSums + s)],
                  values[static_cast<size_t>(other * kSums + s)]);
      }
    }
    const Buffer in(DType::kF64, {kSums * kEach}, values);
    const Words words(1, kSums);
    int64_t done = 0;
    for (const int64_t end : {int64_t{1}, int64_t{100} * i + 2, kEach}) {
      AddExact(*context, {.values = in.tensor().Rows(done * kSums, (end - done) * kSums),
                          .words = words.tensor(),
                          .accumulate = done > 0});
      done = end;
    }
    ExpectWords(words.tensor(), host);
  }
}

// Digits are carried between calls: words stay those of one sum, whatever was added before.
TEST(ExactSumOps, ManyCallsStayCarried) {
  const ScratchContext context(0);
  const std::vector<double> values(64, -kMax);
  const Buffer in(DType::kF64, {64}, values);
  const Words words(1, 1);
  ExactSum host;
  for (int i = 0; i < 200; ++i) {
    AddExact(*context, {in.tensor(), words.tensor(), i > 0});
    host.Add(std::span<const double>(values));
  }
  ExpectWords(words.tensor(), {host});
  for (size_t w = 0; w + 4 < kWords; ++w) {
    EXPECT_GE(words.tensor().data<int64_t>()[w], 0);
    EXPECT_LT(words.tensor().data<int64_t>()[w], int64_t{1} << 32);
  }
}

TEST(ExactSumOps, NothingClearsOrStays) {
  const ScratchContext context(0);
  const Buffer in(DType::kF64, {2}, {3, 4});
  const Words words(1, 2);
  AddExact(*context, {in.tensor(), words.tensor()});
  AddExact(*context, {Tensor(), words.tensor(), true});
  EXPECT_EQ(RoundAll(*context, words, 1, 2), (std::vector<double>{3, 4}));
  AddExact(*context, {Tensor(nullptr, DType::kF64, {0}), words.tensor()});
  ExpectWords(words.tensor(), std::vector<ExactSum>(2));
  EXPECT_EQ(RoundAll(*context, words, 1, 2), (std::vector<double>{0, 0}));
}

TEST(ExactSumOps, OverRanks) {
  constexpr int64_t kSums = 5;
  for (const int64_t ranks : {1, 2, 7, 64}) {
    SCOPED_TRACE(ranks);
    const ScratchContext context(0);
    const Words words(ranks, kSums);
    std::vector<ExactSum> host(kSums);
    for (int64_t r = 0; r < ranks; ++r) {
      std::vector<double> values = Random(static_cast<uint64_t>(r), kSums * 20, -200, 200);
      // Sums 1 and 2: too large on a rank, and the same with its opposite on another; 3: NaN of
      // one; 4: infinite on all.
      values[1] = kMax;
      values[2] = r % 2 == 0 ? kMax : -kMax;
      if (r == ranks / 2) values[3] = kNan;
      values[4] = -kInfinity;
      const Buffer in(DType::kF64, {kSums * 20}, values);
      AddExact(*context, {in.tensor(), words.OfRank(r, kSums)});
      const std::vector<ExactSum> own = HostSums(values, kSums);
      for (size_t s = 0; s < kSums; ++s) host[s].Add(own[s]);
    }
    const std::vector<double> rounded = RoundAll(*context, words, ranks, kSums);
    for (size_t s = 0; s < kSums; ++s)
      EXPECT_TRUE(SameDouble(rounded[s], host[s].Round())) << s << ": " << rounded[s];
    words.ExpectWhole();
  }
}

// Words of the host go to the device's rounding as they are, and the other way round.
TEST(ExactSumOps, HostAndDeviceShareWords) {
  const ScratchContext context(0);
  const std::vector<double> values = Random(9, 500, -400, 400);
  std::vector<ExactSum> host = HostSums(values, 1);
  std::vector<int64_t> words(host[0].words().begin(), host[0].words().end());
  const testing::Lend lend({Tensor(words.data(), {1, 1, kWords})});
  Buffer out(DType::kF64, {1});
  RoundExact(*context, {Tensor(words.data(), {1, 1, kWords}), out.tensor()});
  EXPECT_TRUE(SameDouble(out.Get(0), host[0].Round()));
}

uint32_t Halted(const std::vector<double>& values, uint32_t before) {
  const ScratchContext context(0);
  const Buffer x(DType::kF64, {static_cast<int64_t>(values.size())}, values);
  Buffer halted(DType::kU32, {1}, {static_cast<double>(before)});
  HaltUnlessFinite(*context, {x.tensor(), halted.tensor()});
  EXPECT_TRUE(halted.GuardsIntact());
  return static_cast<uint32_t>(halted.Get(0));
}

TEST(ExactSumOps, HaltsWhatIsNotFinite) {
  const std::vector<double> fine = Random(3, 70, -100, 100);
  EXPECT_EQ(Halted(fine, 0), 0U);
  EXPECT_EQ(Halted({kMax, -kMax, kTiny}, 0), 0U);
  EXPECT_EQ(Halted({}, 0), 0U);
  for (const double bad : {kNan, kInfinity, -kInfinity}) {
    for (const size_t at : {size_t{0}, size_t{33}, size_t{69}}) {
      std::vector<double> values = fine;
      values[at] = bad;
      EXPECT_EQ(Halted(values, 0), 1U) << bad << " at " << at;
    }
  }
  EXPECT_EQ(Halted({kInfinity, -kInfinity}, 0), 1U);
  EXPECT_EQ(Halted({kMax, kMax, -kMax}, 0), 1U);  // on the way
  EXPECT_EQ(Halted(fine, 1), 1U);                 // stays
  EXPECT_EQ(Halted({}, 1), 1U);
}

TEST(ExactSumOpsDeathTest, WhatDoesNotFit) {
  const ScratchContext context(0);
  const Buffer in(DType::kF64, {3}, {1, 2, 3});
  const Words words(1, 2);
  EXPECT_DEATH(AddExact(*context, {in.tensor(), words.tensor()}), "3 values for 2 exact sums");
  Buffer out(DType::kF64, {3});
  EXPECT_DEATH(RoundExact(*context, {words.OfRanks(1, 2), out.tensor()}), "expected \\[2\\]");
  EXPECT_DEATH(HaltUnlessFinite(*context, {in.tensor(), out.tensor()}), "halted is f64");
}

}  // namespace
}  // namespace overtok

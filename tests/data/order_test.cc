#include "data/order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/permutation.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using Type = OrderOptions::Type;

OrderOptions Options(Type type, int64_t block = 2048, bool reshuffle = false) {
  OrderOptions options;
  options.type = type;
  options.block = block;
  options.reshuffle = reshuffle;
  return options;
}

std::vector<int64_t> Windows(const Order& order, int64_t first, int64_t count) {
  std::vector<int64_t> windows;
  for (int64_t s = first; s < first + count; ++s) windows.push_back(order.Window(s));
  return windows;
}

bool IsPermutation(std::vector<int64_t> values, int64_t n) {
  std::sort(values.begin(), values.end());
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return values == all;
}

// The published constants of the recipe's order: its multiplier, offset and number of windows map
// the places where its first block starts to its first six windows.
TEST(OrderTest, ReproducesTheRecipesFirstWindows) {
  OrderOptions options;
  options.a = 830'293;
  options.b = 746'237;
  const auto order = Order::Create(options, 2'441'406, 0);
  OT_ASSERT_OK(order);
  const int64_t starts[] = {416, 814, 925, 86, 1936, 560};
  const int64_t windows[] = {1'909'879, 335'277, 2'165'778, 1'350'661, 1'748'337, 1'843'177};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(LinearPermutation(order->a(), order->b(), order->windows(), starts[i]), windows[i]);
  }
}

TEST(OrderTest, ProductsDoNotOverflow) {
  constexpr int64_t kN = (int64_t{1} << 55) - 55;
  const auto at = LinearPermutation(kN - 1, 5, kN, kN - 1);  // (-1)(-1) + 5
  EXPECT_EQ(at, 6);
}

TEST(OrderTest, EveryPassIsAPermutation) {
  for (const Type type : {Type::kLinear, Type::kFeistel, Type::kSequential}) {
    for (const int64_t n : {1, 2, 3, 7, 64, 100, 1000}) {
      const auto order = Order::Create(Options(type, 10), n, 0);
      OT_ASSERT_OK(order);
      // Positions of a linear pass may cross its border by less than a block: count by passes.
      std::vector<std::vector<int64_t>> passes(4);
      for (int64_t s = 0; s < 3 * n + 20; ++s) {
        const int64_t pass = order->Pass(s);
        if (pass < 4) passes[static_cast<size_t>(pass)].push_back(order->Window(s));
      }
      for (size_t pass = 0; pass < 3; ++pass) {
        EXPECT_TRUE(IsPermutation(passes[pass], n)) << static_cast<int>(type) << " n " << n;
      }
    }
  }
}

TEST(OrderTest, SequencesStayInsideTheirBlocks) {
  OrderOptions options = Options(Type::kLinear, 16);
  options.a = 1;
  options.b = 0;
  const auto order = Order::Create(options, 160, 0);
  OT_ASSERT_OK(order);
  int64_t fixed = 0;
  for (int64_t s = 0; s < 160; ++s) {
    EXPECT_EQ(order->Window(s) / 16, s / 16);
    fixed += order->Window(s) == s ? 1 : 0;
  }
  EXPECT_LT(fixed, 40);  // 10 of 160 are expected of random permutations
  EXPECT_NE(Windows(*order, 0, 16), Windows(*order, 160, 16)) << "blocks are permuted afresh";
}

// The recipe's rule at the end of a pass: a block that crosses it wraps, and belongs to two passes.
TEST(OrderTest, BlocksWrapAtTheEndOfAPass) {
  OrderOptions options = Options(Type::kLinear, 16);
  options.a = 1;
  options.b = 0;
  const auto order = Order::Create(options, 100, 0);
  OT_ASSERT_OK(order);
  std::set<int64_t> last;
  for (int64_t s = 96; s < 112; ++s) {
    const int64_t window = order->Window(s);
    last.insert(window);
    EXPECT_EQ(order->Pass(s), window >= 96 ? 0 : 1);
  }
  EXPECT_EQ(last, (std::set<int64_t>{96, 97, 98, 99, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
}

// Until its first repeated window a repeated run equals the unrepeated one, whatever prefix and
// block are to each other.
TEST(OrderTest, PrefixEqualsTheUnrepeatedRunUntilItRepeats) {
  for (const Type type : {Type::kLinear, Type::kFeistel, Type::kSequential}) {
    for (const bool reshuffle : {false, true}) {
      if (reshuffle && type == Type::kSequential) continue;
      for (const int64_t n : {50, 130}) {
        for (const int64_t block : {1, 16, 64, 2048}) {
          for (int64_t prefix = 1; prefix <= n; prefix += 9) {
            const OrderOptions options = Options(type, block, reshuffle);
            const auto whole = Order::Create(options, n, 0);
            const auto part = Order::Create(options, n, prefix);
            OT_ASSERT_OK(whole);
            OT_ASSERT_OK(part);
            std::set<int64_t> seen;
            int64_t s = 0;
            while (seen.insert(part->Window(s)).second) {
              ASSERT_EQ(part->Window(s), whole->Window(s))
                  << "n " << n << " block " << block << " prefix " << prefix << " s " << s;
              ++s;
            }
            // The first repeat comes at the prefix's end, or in the block that crosses it.
            EXPECT_LE(s, prefix);
            EXPECT_GT(s, prefix - std::min(block, n));
            // No pass reads anything but the kept windows, and it reads each.
            for (; s < 5 * prefix; ++s) seen.insert(part->Window(s));
            EXPECT_EQ(static_cast<int64_t>(seen.size()), prefix);
          }
        }
      }
    }
  }
}

TEST(OrderTest, PassesRepeatTheOrderUnlessReshuffled) {
  for (const Type type : {Type::kLinear, Type::kFeistel}) {
    const auto same = Order::Create(Options(type, 1), 500, 0);
    const auto fresh = Order::Create(Options(type, 1, true), 500, 0);
    OT_ASSERT_OK(same);
    OT_ASSERT_OK(fresh);
    EXPECT_EQ(Windows(*same, 0, 500), Windows(*same, 500, 500));
    EXPECT_EQ(Windows(*same, 0, 500), Windows(*fresh, 0, 500));
    EXPECT_NE(Windows(*fresh, 0, 500), Windows(*fresh, 500, 500));
    EXPECT_NE(Windows(*fresh, 500, 500), Windows(*fresh, 1000, 500));
    EXPECT_TRUE(IsPermutation(Windows(*fresh, 1000, 500), 500));
    const auto blocks = Order::Create(Options(type, 64, true), 500, 0);
    OT_ASSERT_OK(blocks);
    for (int64_t pass = 0; pass < 3; ++pass) {
      EXPECT_TRUE(IsPermutation(Windows(*blocks, pass * 500, 500), 500));
    }
  }
}

TEST(OrderTest, SeedsGiveDifferentOrders) {
  for (const Type type : {Type::kLinear, Type::kFeistel}) {
    OrderOptions options = Options(type);
    const auto first = Order::Create(options, 5000, 0);
    options.seed = 43;
    const auto second = Order::Create(options, 5000, 0);
    OT_ASSERT_OK(first);
    OT_ASSERT_OK(second);
    EXPECT_NE(Windows(*first, 0, 100), Windows(*second, 0, 100));
  }
}

// A repeated run's subset is drawn by the seed of the order: what two seeds share is what chance
// gives, 1000 * 1000 / 5000 windows with a standard deviation of 11; six of them are granted.
TEST(OrderTest, SeedsKeepDifferentSubsets) {
  for (const Type type : {Type::kLinear, Type::kFeistel}) {
    std::vector<std::set<int64_t>> kept;
    for (const uint64_t seed : {42, 43, 44}) {
      OrderOptions options = Options(type, 64);
      options.seed = seed;
      const auto order = Order::Create(options, 5000, 1000);
      OT_ASSERT_OK(order);
      const std::vector<int64_t> windows = Windows(*order, 0, 2500);
      kept.emplace_back(windows.begin(), windows.end());
      EXPECT_EQ(kept.back().size(), 1000u) << "two and a half passes read no other window";
    }
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = 0; j < i; ++j) {
        const auto shared = std::count_if(kept[i].begin(), kept[i].end(), [&](int64_t window) {
          return kept[j].count(window) > 0;
        });
        EXPECT_NEAR(static_cast<double>(shared), 200, 68) << i << " and " << j;
      }
    }
  }
}

// Resuming needs no state: a value does not depend on what was asked before.
TEST(OrderTest, WindowsArePureFunctions) {
  const auto order = Order::Create(Options(Type::kLinear), 5000, 0);
  OT_ASSERT_OK(order);
  const std::vector<int64_t> forward = Windows(*order, 0, 3000);
  for (int64_t s = 2999; s >= 0; s -= 17) {
    EXPECT_EQ(order->Window(s), forward[static_cast<size_t>(s)]);
  }
}

// Each place of a block is taken by each position equally often: over 20,000 blocks of 10, a count
// of 2,000 has a standard deviation of 42; six of them bound all 100 counts.
TEST(OrderTest, BlockPermutationsAreUniform) {
  std::vector<std::vector<int>> counts(10, std::vector<int>(10));
  for (uint64_t block = 0; block < 20'000; ++block) {
    for (int64_t i = 0; i < 10; ++i) {
      const int64_t at = FeistelPermutation(42, RandomPurpose::kBlock, block, 10, i);
      ++counts[static_cast<size_t>(i)][static_cast<size_t>(at)];
    }
  }
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, 2000, 6 * 42);
  }
}

TEST(OrderTest, MistakesAreNamed) {
  OrderOptions options;
  OT_EXPECT_ERROR(Order::Create(options, 0, 0), "no whole window");
  OT_EXPECT_ERROR(Order::Create(options, 10, 11), "the corpus has only 10");
  options.a = 6;
  OT_EXPECT_ERROR(Order::Create(options, 9, 0), "greatest common divisor 3");
  options.a = 2;
  options.b = -1;
  OT_EXPECT_ERROR(Order::Create(options, 9, 0), "order.b is -1");
  options = Options(Type::kFeistel);
  options.a = 5;
  OT_EXPECT_ERROR(Order::Create(options, 9, 0), "no effect unless order.type is linear");
  OT_EXPECT_ERROR(Order::Create(Options(Type::kSequential, 8, true), 9, 0), "order.reshuffle");
  OT_EXPECT_ERROR(Order::Create(Options(Type::kLinear, 0), 9, 0), "order.block is 0");
}

}  // namespace
}  // namespace overtok

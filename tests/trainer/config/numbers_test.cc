#include "trainer/config/numbers.h"

#include <gtest/gtest.h>

#include <limits>

namespace overtok {
namespace {

TEST(Numbers, WholeNumbersAreExact) {
  EXPECT_EQ(ParseWhole("0"), 0);
  EXPECT_EQ(ParseWhole("4096"), 4096);
  EXPECT_EQ(ParseWhole("4_096"), 4096);
  EXPECT_EQ(ParseWhole("1e9"), 1000000000);
  EXPECT_EQ(ParseWhole("10B"), 10000000000);
  EXPECT_EQ(ParseWhole("2.6B"), 2600000000);
  EXPECT_EQ(ParseWhole("1.5K"), 1500);
  EXPECT_EQ(ParseWhole("3M"), 3000000);
  EXPECT_EQ(ParseWhole("2T"), 2000000000000);
  EXPECT_EQ(ParseWhole("4096.0"), 4096);
  EXPECT_EQ(ParseWhole("1200e-2"), 12);
  EXPECT_EQ(ParseWhole("-7"), -7);
  EXPECT_EQ(ParseWhole("+7"), 7);
  // 2^53 + 1 and the largest value do not survive a double.
  EXPECT_EQ(ParseWhole("9007199254740993"), 9007199254740993);
  EXPECT_EQ(ParseWhole("9223372036854775807"), std::numeric_limits<int64_t>::max());
}

TEST(Numbers, RefusedAsWhole) {
  for (const char* text :
       {"",     "010",  "0x10",       "0o17", "nan",  ".nan", "inf",
        "1.5",  "1e-3", "_1",         "1_",   "1__0", "1e",   "1.",
        ".5",   "1 0",  "10k",        "10BB", "B",    "-",    "9223372036854775808",
        "1e19", "00",   "1e99999999", "١٢"}) {
    EXPECT_EQ(ParseWhole(text), std::nullopt) << text;
  }
}

TEST(Numbers, RealNumbers) {
  EXPECT_EQ(ParseReal("0.02"), 0.02);
  EXPECT_EQ(ParseReal("1e-3"), 1e-3);
  EXPECT_EQ(ParseReal("1e-20"), 1e-20);
  EXPECT_EQ(ParseReal("1E+3"), 1000.0);
  EXPECT_EQ(ParseReal("-4.7750"), -4.775);
  EXPECT_EQ(ParseReal("10B"), 1e10);
  EXPECT_EQ(ParseReal("4_096.5"), 4096.5);
  for (const char* text : {"", "010", "00.5", "0x1p3", "nan", ".nan", "inf", ".inf", "-inf",
                           "1e400", "one", "0.0.1", "1,5"}) {
    EXPECT_EQ(ParseReal(text), std::nullopt) << text;
  }
}

TEST(Numbers, FormattedNumbersReadBackBitForBit) {
  for (const double value : {0.0, 1.0, 10000.0, 0.1, 1.0 / 3, 1e-5, 1e-20, 3.4445, -4.775, 1e22,
                             5e-324, std::numeric_limits<double>::max()}) {
    EXPECT_EQ(ParseReal(FormatReal(value)), value) << FormatReal(value);
  }
  EXPECT_EQ(FormatReal(10000), "10000");
  EXPECT_EQ(FormatReal(0.02), "0.02");
}

TEST(Numbers, TextThatOthersTakeForANumber) {
  for (const char* text :
       {"12", "010", "0x10", ".inf", "-.INF", "NaN", "1e5", "10B", "2024-01-01"}) {
    EXPECT_TRUE(LooksLikeNumber(text)) << text;
  }
  for (const char* text : {"", "runs/130m", "130m", "corpus", "e5", "a1"}) {
    EXPECT_FALSE(LooksLikeNumber(text)) << text;
  }
}

}  // namespace
}  // namespace overtok

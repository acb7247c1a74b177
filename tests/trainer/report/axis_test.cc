// Ticks of the report's axes and the numbers written at them.
#include "trainer/report/axis.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace overtok {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const Tick& tick : axis.ticks) {
    if (!tick.label.empty()) labels.push_back(tick.label);
  }
  return labels;
}

TEST(AxisTest, LinearTicksAreRoundAndInside) {
  const Axis axis = LinearAxis(4.51, 7.04, 7);
  EXPECT_THAT(Labels(axis), ElementsAre("4.5", "5.0", "5.5", "6.0", "6.5", "7.0"));
  for (const Tick& tick : axis.ticks) {
    EXPECT_TRUE(tick.value >= axis.low && tick.value <= axis.high);
  }
  EXPECT_TRUE(axis.low < 4.51 && axis.high > 7.04);
}

TEST(AxisTest, CountsStartAtZero) {
  const Axis axis = LinearAxis(2048, 1.2e6, 8, /*from_zero=*/true);
  EXPECT_EQ(axis.low, 0);
  EXPECT_THAT(Labels(axis), ElementsAre("0", "200k", "400k", "600k", "800k", "1M", "1.2M"));
}

TEST(AxisTest, ScientificLabelsWhereAsked) {
  EXPECT_THAT(Labels(LinearAxis(0, 2.3e12, 5, true, /*scientific=*/true)),
              ElementsAre("0", "5×10¹¹", "10¹²", "1.5×10¹²", "2×10¹²"));
}

TEST(AxisTest, OneValueGetsRoom) {
  for (const double value : {0.0, 3.5, -2.0, 1e18}) {
    const Axis axis = LinearAxis(value, value, 5);
    EXPECT_TRUE(axis.low < axis.high) << value;
    EXPECT_TRUE(std::isfinite(axis.Fraction(value))) << value;
    EXPECT_FALSE(axis.ticks.empty()) << value;
  }
  const Axis log = LogAxis(1e13, 1e13, 5);
  EXPECT_TRUE(log.low < log.high);
  EXPECT_TRUE(std::isfinite(log.Fraction(1e13)));
}

TEST(AxisTest, LogTicksAreDecadesWithFractionsWhereThereIsRoom) {
  EXPECT_THAT(Labels(LogAxis(7.6e11, 2.3e13, 8)),
              ElementsAre("10¹²", "2×10¹²", "5×10¹²", "10¹³", "2×10¹³"));
  EXPECT_THAT(Labels(LogAxis(1e12, 1e18, 8)),
              ElementsAre("10¹²", "10¹³", "10¹⁴", "10¹⁵", "10¹⁶", "10¹⁷", "10¹⁸"));
  EXPECT_LE(Labels(LogAxis(1, 1e30, 8)).size(), 9u);
}

TEST(AxisTest, FractionIsLogarithmic) {
  const Axis axis{1, 100, true, {}};
  EXPECT_TRUE(std::abs(axis.Fraction(10) - 0.5) <= 1e-12);  // a few roundings of log
}

TEST(AxisTest, Numbers) {
  EXPECT_EQ(CompactNumber(0), "0");
  EXPECT_EQ(CompactNumber(12.25), "12.2");
  EXPECT_EQ(CompactNumber(999.7), "1k");  // not 1e+03
  EXPECT_EQ(CompactNumber(1234567), "1.23M");
  EXPECT_EQ(CompactNumber(999600), "1M");
  EXPECT_EQ(CompactNumber(-2.5e9), "-2.5B");
  EXPECT_EQ(CompactNumber(2e18), "2×10¹⁸");
  EXPECT_EQ(ScientificNumber(2.36e13, 3), "2.36×10¹³");
  EXPECT_EQ(ScientificNumber(9.999e12, 2), "10¹³");
  EXPECT_EQ(ScientificNumber(1e-5, 2), "10⁻⁵");
  EXPECT_EQ(ScientificNumber(0), "0");
}

}  // namespace
}  // namespace overtok

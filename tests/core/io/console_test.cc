#include "core/console.h"

#include <gtest/gtest.h>

#include <limits>

namespace overtok {
namespace {

TEST(ConsoleTest, Durations) {
  EXPECT_EQ(FormatDuration(45.2), "45s");
  EXPECT_EQ(FormatDuration(59.7), "1m00s");
  EXPECT_EQ(FormatDuration(61), "1m01s");
  EXPECT_EQ(FormatDuration(3 * 3600 + 12 * 60 + 5), "3h12m");
  EXPECT_EQ(FormatDuration(2 * 86400 + 5 * 3600), "2d05h");
  EXPECT_EQ(FormatDuration(-1), "?");
  EXPECT_EQ(FormatDuration(std::numeric_limits<double>::quiet_NaN()), "?");
}

TEST(ConsoleTest, CountsHaveThreeDigits) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(512), "512");
  EXPECT_EQ(FormatCount(131072), "131k");
  EXPECT_EQ(FormatCount(1.05e6), "1.05M");
  EXPECT_EQ(FormatCount(999.7e3), "1.00M");
  EXPECT_EQ(FormatCount(2.6e9), "2.60B");
  EXPECT_EQ(FormatCount(0.25), "0.25");
}

TEST(ConsoleTest, Bytes) {
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(1536), "1.50 KiB");
  EXPECT_EQ(FormatBytes(int64_t{1524713390}), "1.42 GiB");
}

// Standard error of a test is no terminal: updates within the interval print nothing, the summary
// is one line.
TEST(ConsoleTest, PlainOutputIsRateLimited) {
  ::testing::internal::CaptureStderr();
  {
    Progress progress("work", 100, "MB");
    for (int i = 0; i < 1000; ++i) progress.Update(i / 10.0);
    LogWarning("odd");
    progress.Finish("done");
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning: odd\ndone\n");
}

}  // namespace
}  // namespace overtok

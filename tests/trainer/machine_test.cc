#include "trainer/machine.h"

#include <gtest/gtest.h>

#include <vector>

namespace overtok {
namespace {

TEST(MachineTest, KnowsItsMemory) {
  const AvailableMemory memory = FindAvailableMemory();
  EXPECT_GT(memory.bytes, 0);
  EXPECT_FALSE(memory.source.empty());
}

TEST(MachineTest, PeakGrowsWithUse) {
  const int64_t before = PeakMemory();
  ASSERT_GT(before, 0);
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<char> block(kBytes, 1);
  // Something has to read it, or the compiler leaves it out.
  EXPECT_EQ(block[kBytes / 2], 1);
  EXPECT_GE(PeakMemory(), before);
  EXPECT_GE(PeakMemory(), static_cast<int64_t>(kBytes));
}

}  // namespace
}  // namespace overtok

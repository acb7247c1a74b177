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
  std::vector<char> block(kBytes);
  // Volatile writes, or a compiler may leave the whole block out.
  volatile char* bytes = block.data();
  for (size_t i = 0; i < kBytes; i += 4096) bytes[i] = 1;
  EXPECT_GE(PeakMemory(), before);
  EXPECT_GE(PeakMemory(), static_cast<int64_t>(kBytes));
}

}  // namespace
}  // namespace overtok

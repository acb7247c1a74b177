// What starting cuDNN's attention says where something is missing. What it computes is tested on a
// GPU alone: the op tests with OVERTOK_TEST_DEVICE=cuda OVERTOK_TEST_ATTENTION=cudnn.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "core/cuda/attention_cudnn.h"
#include "core/cuda/device.h"

namespace overtok {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(CudnnAttention, NamesWhatIsMissing) {
  if (CudaIsThere()) GTEST_SKIP() << "a device is there";
  const absl::Status status = StartCudnnAttention(CpuDevice(), {}).status();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), AnyOf(HasSubstr("was built without cuDNN"),
                                                   HasSubstr("needs a device of kind cuda")));
  EXPECT_EQ(CpuDevice()->attention(), AttentionKind::kKernels);
}

}  // namespace
}  // namespace overtok

// The CUDA device. Without a GPU: that its absence is an error which names what is missing. With
// one: memory, transfers of every size in both directions and their order with ops.
#include "core/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/ops/elementwise.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(CudaDevice, SaysWhatIsMissing) {
  if (CudaIsThere()) GTEST_SKIP() << "a device is there";
  const absl::StatusOr<Device*> device = CudaDevice(0);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()),
              AnyOf(HasSubstr("no CUDA driver was found"), HasSubstr("shows no device"),
                    HasSubstr("the CUDA driver is for CUDA"), HasSubstr("was built without CUDA")));
}

class OnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!CudaIsThere()) GTEST_SKIP() << "no device is here";
    const absl::StatusOr<Device*> device = CudaDevice(0);
    OT_ASSERT_OK(device);
    device_ = *device;
  }
  Device* device_ = nullptr;
};

TEST_F(OnCuda, NumbersBeyondTheDevicesAreRefused) {
  const absl::StatusOr<Device*> device = CudaDevice(1000);
  ASSERT_FALSE(device.ok());
  EXPECT_THAT(std::string(device.status().message()), HasSubstr("1000"));
}

TEST_F(OnCuda, MemoryIsZeroAlignedAndItsOwn) {
  const int64_t before = device_->free_bytes();
  for (const int64_t bytes : {int64_t{1}, int64_t{1000}, int64_t{300} << 20}) {
    void* data = device_->Allocate(bytes, "test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 256, 0U);
    EXPECT_TRUE(device_->Owns(data));
    std::vector<char> read(static_cast<size_t>(bytes), 1);
    device_->Read({read.data(), data, bytes});
    EXPECT_EQ(read, std::vector<char>(static_cast<size_t>(bytes), 0));
    device_->Free(data, bytes);
  }
  EXPECT_EQ(device_->Allocate(0, "nothing"), nullptr);
  const int host = 0;
  EXPECT_FALSE(device_->Owns(&host));
  EXPECT_LE(before, device_->total_bytes());
}

// Parts larger than the staging buffers, many small ones, and ones that change right after.
TEST_F(OnCuda, WhatIsSentIsRead) {
  for (const int64_t n : {int64_t{1}, int64_t{1000}, int64_t{40} << 20}) {
    const int64_t bytes = n * 4;
    std::vector<uint32_t> sent(static_cast<size_t>(n));
    std::iota(sent.begin(), sent.end(), 7U);
    const std::vector<uint32_t> kept = sent;
    auto* data = static_cast<char*>(device_->Allocate(bytes, "test"));
    std::vector<Device::Piece> pieces;
    const int64_t step = n < 10000 ? 4 * 13 : bytes / 3 / 4 * 4;
    for (int64_t at = 0; at < bytes; at += step) {
      pieces.push_back(
          {data + at, reinterpret_cast<char*>(sent.data()) + at, std::min(step, bytes - at)});
    }
    device_->Send(pieces, StreamName::kMain);
    std::fill(sent.begin(), sent.end(), 0U);
    std::vector<uint32_t> read(static_cast<size_t>(n));
    device_->Read({read.data(), data, bytes});
    EXPECT_EQ(read, kept);
    device_->Free(data, bytes);
  }
}

TEST_F(OnCuda, TransfersKeepTheirOrderWithOps) {
  constexpr int64_t kElements = 1 << 20;
  const Context context(device_);
  const Tensor x(device_->Allocate(kElements * 4, "x"), DType::kF32, {kElements});
  const Tensor y(device_->Allocate(kElements * 4, "y"), DType::kF32, {kElements});
  std::vector<float> host(kElements), read(kElements);
  for (int round = 1; round <= 10; ++round) {
    std::fill(host.begin(), host.end(), static_cast<float>(round));
    context.Write(host.data(), x);
    Add(context, {.x = x, .y = y});
  }
  context.Read(y, read.data());
  EXPECT_EQ(read, std::vector<float>(kElements, 55.0F));
  device_->Free(x.raw(), x.bytes());
  device_->Free(y.raw(), y.bytes());
}

}  // namespace
}  // namespace overtok

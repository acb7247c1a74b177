// The staged communicator over threads, with tensors on the emulated device, whose memory host code
// cannot touch.
#include "core/comm/staged.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/cuda/emulation/device.h"
#include "tests/core/comm/exchange_checks.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using Message = Communicator::Message;

// Calls check(world) on n threads, staged over the threads' communicator.
void RunStaged(int n, const std::function<void(Communicator&)>& check) {
  testing::RunOnRanks(n, [&check](Communicator& world) {
    const auto staged = Staged(world.Divide(0), EmulatedDevice());
    check(*staged);
  });
}
void RunOnDevice(int n, const std::function<void(Communicator&)>& check) {
  RunStaged(n, [&check](Communicator& world) {
    const testing::TensorsOn place(EmulatedDevice());
    check(world);
  });
}

class StagedRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, StagedRanks, ::testing::Values(1, 2, 3, 4));

TEST_P(StagedRanks, TensorsOnTheDevice) {
  RunOnDevice(GetParam(), testing::CheckUnevenAndEmptyMessages);
  RunOnDevice(GetParam(), testing::CheckGuardsBesideOneFloat);
  RunOnDevice(GetParam(), testing::CheckEveryDType);
  RunOnDevice(GetParam(), testing::CheckOrderOfExchangesInFlight);
  RunOnDevice(GetParam(), testing::CheckGatherInPlace);
  RunOnDevice(GetParam(), testing::CheckBroadcasts);
  RunOnDevice(GetParam(), testing::CheckBytesSent);
}
TEST_P(StagedRanks, TensorsInHostMemory) {
  RunStaged(GetParam(), testing::CheckUnevenAndEmptyMessages);
  RunStaged(GetParam(), testing::CheckGuardsBesideOneFloat);
  RunStaged(GetParam(), testing::CheckEveryDType);
  RunStaged(GetParam(), testing::CheckOrderOfExchangesInFlight);
  RunStaged(GetParam(), testing::CheckGatherInPlace);
  RunStaged(GetParam(), testing::CheckSumsAreEqualBits);
  RunStaged(GetParam(), testing::CheckMaximaAndFlags);
  RunStaged(GetParam(), testing::CheckBroadcasts);
  RunStaged(GetParam(), testing::CheckBytesSent);
}
TEST(Staged, GroupsOfAMesh) {
  RunOnDevice(4, testing::CheckGroupsOfAMesh);
  RunStaged(4, testing::CheckGroupsOfAMesh);
}

// One side of a message in host memory and the other on the device; to oneself, all four ways.
TEST(Staged, HostAndDeviceMix) {
  RunStaged(2, [](Communicator& world) {
    Device& device = *EmulatedDevice();
    auto* on_device = static_cast<float*>(device.Allocate(16, "a test's elements"));
    std::vector<float> host = {1, 2, 0, 0};
    const auto tensor = [](float* data) { return Tensor(data, {1}); };
    const Device::Piece piece{on_device, host.data(), 16};
    device.Send({&piece, 1}, StreamName::kMain);
    const int me = world.rank(), other = 1 - me;
    const Message sends[] = {{other, tensor(on_device)},
                             {other, tensor(host.data() + 1)},
                             {me, tensor(on_device)},
                             {me, tensor(on_device + 1)}};
    const Message receives[] = {{other, tensor(host.data() + 2)},
                                {other, tensor(on_device + 2)},
                                {me, tensor(host.data() + 3)},
                                {me, tensor(on_device + 3)}};
    world.Exchange(sends, receives, Traffic::kTables);
    EXPECT_THAT(host, ::testing::ElementsAre(1, 2, 1, 1));
    device.Read({host.data(), on_device, 16});
    EXPECT_THAT(host, ::testing::ElementsAre(1, 2, 2, 2));
    host[0] = 9;
    const Message down{me, tensor(host.data())}, up{me, tensor(on_device)};
    world.Exchange({&down, 1}, {&up, 1}, Traffic::kTables);
    device.Read({host.data() + 3, on_device, 4});
    EXPECT_EQ(host[3], 9);
    device.Free(on_device, 16);
  });
}

TEST(Staged, OfTheCpuIsTheCommunicatorItself) {
  auto one = OneRank();
  const Communicator* before = one.get();
  EXPECT_EQ(Staged(std::move(one), CpuDevice()).get(), before);
}

TEST(StagedDeathTest, HostCodeCannotTouchTheTensorsItself) {
  EXPECT_DEATH(testing::RunOnRanks(2,
                                   [](Communicator& world) {
                                     const testing::TensorsOn place(EmulatedDevice());
                                     testing::CheckGatherInPlace(world);
                                   }),
               "");
}

}  // namespace
}  // namespace overtok

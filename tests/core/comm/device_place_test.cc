// Which device a rank takes: by its number on its host, never its rank in the world.
#include "core/comm/device_place.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

RankDevices On(const std::string& host, std::vector<std::string> devices) {
  return {host, std::move(devices)};
}
std::string ErrorOf(const std::vector<RankDevices>& ranks) {
  return std::string(PlaceOnDevices(ranks, false).status().message());
}

TEST(DevicePlace, CountsAmongTheProcessesOfAHost) {
  const RankDevices a = On("a", {"0", "1", "2"}), b = On("b", {"0", "1", "2"});
  EXPECT_THAT(*PlaceOnDevices({a, a, b, b, b}, false), ElementsAre(0, 1, 0, 1, 2));
  EXPECT_THAT(*PlaceOnDevices({a, b, a, b, b}, false), ElementsAre(0, 0, 1, 1, 2));
}

TEST(DevicePlace, OneDevicePerProcessShownByTheLauncher) {
  EXPECT_THAT(*PlaceOnDevices({On("a", {"0"}), On("a", {"1"}), On("a", {"2"})}, false),
              ElementsAre(0, 0, 0));
}

TEST(DevicePlace, MoreRanksThanDevicesIsAnError) {
  const RankDevices a = On("node1", {"0", "1"});
  EXPECT_THAT(ErrorOf({a, a, a}), HasSubstr("3 ranks on node1 for 2 GPUs (0, 1): start at most"));
  EXPECT_THAT(*PlaceOnDevices({a, a, a}, true), ElementsAre(0, 1, 0));
}

TEST(DevicePlace, NoDeviceAndOverlapsAreErrors) {
  EXPECT_THAT(ErrorOf({On("a", {"0"}), On("b", {})}), HasSubstr("rank 1 on b sees no GPU"));
  EXPECT_THAT(ErrorOf({On("a", {"0", "1"}), On("a", {"0"})}),
              HasSubstr("ranks 0 and 1 on a both take GPU 0"));
  EXPECT_FALSE(PlaceOnDevices({On("a", {})}, true).ok());
}

TEST(DevicePlace, RanksAgree) {
  testing::RunOnRanks(3, [](Communicator& world) {
    const std::string host = world.rank() == 0 ? "a" : "b";
    const auto place = DeviceOfRank(world, {host, {"0", "1"}}, false);
    ASSERT_TRUE(place.ok());
    EXPECT_EQ(*place, world.rank() == 2 ? 1 : 0);
    EXPECT_TRUE(CheckOwnDevices(world, host, std::to_string(*place)).ok());
    const absl::Status same = CheckOwnDevices(world, host, "0");
    EXPECT_THAT(std::string(same.message()), HasSubstr("2 ranks on b for 1 GPU (0)"));
    EXPECT_FALSE(DeviceOfRank(world, {"c", {}}, true).ok());
  });
}

}  // namespace
}  // namespace overtok

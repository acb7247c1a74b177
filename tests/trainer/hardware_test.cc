#include "trainer/hardware.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace overtok {
namespace {

constexpr char kMachine[] =
    "device:\n"
    "  matmul_flops: {f32: 1e12, bf16: 4e12}\n"
    "  memory_bandwidth: 1e9\n"
    "node:\n"
    "  devices: 4\n"
    "  link: {bandwidth: 2e9, latency: 1e-6}\n";

TEST(HardwareTest, ReadsAMachine) {
  const auto machine = ParseHardware(absl::StrCat(kMachine, "overlap: 0.5\n"), "m.yaml");
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  EXPECT_EQ(machine->matmul.bf16, 4e12);
  EXPECT_EQ(machine->matmul_tf32, 1e12);  // the defaults
  EXPECT_EQ(machine->attention.f32, 0.6e12);
  EXPECT_EQ(machine->devices, 4);
  EXPECT_FALSE(machine->divided);
  EXPECT_EQ(machine->within.latency, 1e-6);
  EXPECT_EQ(machine->between.bandwidth, 0);
  EXPECT_EQ(machine->overlap, 0.5);
}

TEST(HardwareTest, EveryMistakeIsToldWithItsPlace) {
  const auto machine = ParseHardware(
      "device:\n"
      "  matmul_flops: {f32: 1e12, bf16: fast}\n"
      "  memory_bandwith: 1e9\n"
      "node:\n"
      "  devices: 0\n"
      "  link: 3\n"
      "overlap: 1.5\n",
      "m.yaml");
  ASSERT_FALSE(machine.ok());
  const std::string text(machine.status().message());
  for (const char* part :
       {"m.yaml:2: device.matmul_flops.bf16: ", "m.yaml:3: device.memory_bandwith: no such key",
        "m.yaml:5: node.devices: ", "m.yaml:6: node.link: ", "m.yaml:7: overlap: ",
        "device.memory_bandwidth is missing", "node.link.bandwidth is missing"}) {
    EXPECT_THAT(text, ::testing::HasSubstr(part));
  }
}

TEST(HardwareTest, TheProjectsMachinesAreValid) {
  for (const char* name : {"h200.yaml", "h200_node.yaml", "cpu_2_cores.yaml"}) {
    const auto machine = LoadHardware(absl::StrCat(OVERTOK_SOURCE_DIR, "/configs/hardware/", name));
    EXPECT_TRUE(machine.ok()) << machine.status().message();
  }
}

}  // namespace
}  // namespace overtok

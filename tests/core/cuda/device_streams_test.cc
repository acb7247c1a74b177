// Two streams, sections that run together, started reads, stamps and memory of the host that ops
// reach: what core/device.h promises, on the emulated device and, where there is one, on a GPU.
// That orders which nobody said show is tested under the emulation (emulation/streams_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "core/context.h"
#include "core/cuda/device.h"
#include "core/cuda/emulation/device.h"
#include "core/memory.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

class OnDevice : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    device_ = EmulatedDevice();
    if (GetParam() == DeviceKind::kEmulated) return;
    if (!CudaIsThere()) GTEST_SKIP() << "no device is here";
    const absl::StatusOr<Device*> cuda = CudaDevice(0);
    OT_ASSERT_OK(cuda);
    device_ = *cuda;
  }
  // Long enough on a GPU that what does not wait comes too early.
  int64_t elements() const {
#if defined(OVERTOK_CUDA_STAND_IN)
    return 1 << 10;
#else
    return device_->kind() == DeviceKind::kCuda ? 1 << 24 : 1 << 10;
#endif
  }
  // Zeros.
  Tensor Take(Memory& memory, const char* name) const {
    return memory.Take(Purpose::kActivations, name, DType::kF32, {elements()});
  }
  static std::vector<float> Values(const Context& context, const Tensor& x) {
    std::vector<float> values(static_cast<size_t>(x.elements()));
    context.Read(x, values.data());
    return values;
  }
  std::vector<float> All(float value) const {
    return std::vector<float>(static_cast<size_t>(elements()), value);
  }
  Device* device_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(, OnDevice, ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

TEST_P(OnDevice, StreamsWaitForEachOther) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y");
  Context main(device_);
  memory.Commit(&main);
  const Context side = main.Side();
  if (device_->kind() == DeviceKind::kCuda) {
    EXPECT_NE(main.stream(), side.stream());
  }
  // Each round overwrites what the other stream has just read.
  for (int round = 1; round <= 50; ++round) {
    Fill(main, {.x = x, .value = static_cast<double>(round)});
    side.Follow(main);
    Add(side, {.x = x, .y = y});
    main.Follow(side);
  }
  EXPECT_EQ(Values(main, y), All(1275));
}

TEST_P(OnDevice, EveryStreamSends) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y");
  Context main(device_);
  memory.Commit(&main);
  const Context side = main.Side();
  std::vector<float> values;
  for (int round = 1; round <= 8; ++round) {
    // Buffers are reused while earlier transfers of either stream are under way.
    values = All(static_cast<float>(round));
    main.Write(values.data(), x);
    Add(main, {.x = x, .y = y});
    side.Follow(main);
    values = All(static_cast<float>(100 * round));
    side.Write(values.data(), x);
    std::fill(values.begin(), values.end(), -1.0F);
    Add(side, {.x = x, .y = y});
    main.Follow(side);
  }
  EXPECT_EQ(Values(main, y), All(3636));
}

TEST_P(OnDevice, SectionsRunWithTheArgumentsOfTheirCall) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y"), z = Take(memory, "z");
  Context main(device_);
  memory.Commit(&main);
  const Context side = main.Side();
  // Not waited for: updates meet graphs that are under way. Rounds go to y and z in turn.
  for (int round = 1; round <= 20; ++round) {
    const Tensor& sum = round % 2 == 0 ? y : z;
    device_->RunTogether(7, [&] {
      Fill(main, {.x = x, .value = static_cast<double>(round)});
      side.Follow(main);
      Add(side, {.x = x, .y = sum});
      main.Follow(side);
      Add(main, {.x = x, .y = sum});
    });
  }
  EXPECT_EQ(Values(main, y), All(220));
  EXPECT_EQ(Values(main, z), All(200));
}

TEST_P(OnDevice, SectionsMayChangeTheirOps) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y");
  const Tensor half = memory.Take(Purpose::kActivations, "half", DType::kBF16, {elements()});
  Context main(device_);
  memory.Commit(&main);
  const Context side = main.Side();
  Fill(main, {.x = x, .value = 1});
  float expected = 0;
  for (int round = 0; round < 12; ++round) {
    const int adds = round % 5;  // none: an empty section
    const bool branches = round % 2 == 1, casts = round % 3 == 2;
    device_->RunTogether(1, [&] {
      for (int i = 0; i < adds; ++i) {
        const Context& stream = branches ? side : main;
        if (i == 2 && casts) {
          Cast(stream, {.x = x, .y = half});
        } else {
          Add(stream, {.x = x, .y = y});
          expected += 1;
        }
      }
    });
    // Another number has a graph of its own.
    device_->RunTogether(2, [&] { Add(main, {.x = x, .y = y}); });
    expected += 1;
  }
  EXPECT_EQ(Values(main, y), All(expected));
}

// As a step does: the side stream goes on with what no section needs before the end.
TEST_P(OnDevice, SectionsLeaveTheSideStreamAlone) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y"), z = Take(memory, "z");
  Context main(device_);
  memory.Commit(&main);
  const Context side = main.Side();
  Fill(main, {.x = x, .value = 1});
  side.Follow(main);
  for (int round = 0; round < 5; ++round) {
    Add(side, {.x = x, .y = z});
    device_->RunTogether(1, [&] { Add(side, {.x = x, .y = y}); });
  }
  main.Follow(side);
  EXPECT_EQ(Values(main, y), All(5));
  EXPECT_EQ(Values(main, z), All(5));
}

TEST_P(OnDevice, SectionsHoldProducts) {
  Memory memory(Memory::Mode::kReal, device_);
  constexpr int64_t kSide = 64;
  const Tensor a = memory.Take(Purpose::kActivations, "a", DType::kF32, {kSide, kSide});
  const Tensor b = memory.Take(Purpose::kActivations, "b", DType::kF32, {kSide, kSide});
  const Tensor c = memory.Take(Purpose::kActivations, "c", DType::kF32, {kSide, kSide});
  Context main(device_);
  memory.Commit(&main);
  for (int round = 1; round <= 4; ++round) {
    device_->RunTogether(3, [&] {
      Fill(main, {.x = a, .value = static_cast<double>(round)});
      Fill(main, {.x = b, .value = 2});
      Matmul(main, {.a = a, .b = b, .c = c, .accumulate = round > 1});
    });
  }
  // 64 (1 + 2 + 3 + 4) 2, in sums of whole numbers.
  EXPECT_EQ(Values(main, c), std::vector<float>(kSide * kSide, 1280));
}

TEST_P(OnDevice, StartedReadsKeepTheValuesOfTheirPoint) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y");
  Context main(device_);
  memory.Commit(&main);
  std::vector<int64_t> tickets;
  std::vector<std::vector<float>> values;
  for (int i = 0; i < Device::kReadsInFlight; ++i) {
    values.push_back(All(-1));
    values.push_back(std::vector<float>(3, -1));
  }
  for (int i = 0; i < Device::kReadsInFlight; ++i) {
    Fill(main, {.x = x, .value = static_cast<double>(i)});
    Fill(main, {.x = y, .value = static_cast<double>(10 * i)});
    const Device::Piece pieces[] = {{values[static_cast<size_t>(2 * i)].data(), x.raw(), x.bytes()},
                                    {nullptr, y.raw(), 0},
                                    {values[static_cast<size_t>(2 * i + 1)].data(), y.raw(), 12}};
    tickets.push_back(device_->StartRead(pieces));
  }
  Fill(main, {.x = x, .value = 99});
  Fill(main, {.x = y, .value = 99});
  std::reverse(tickets.begin(), tickets.end());
  for (const int64_t ticket : tickets) device_->FinishRead(ticket);
  for (int i = 0; i < Device::kReadsInFlight; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(2 * i)], All(static_cast<float>(i)));
    EXPECT_EQ(values[static_cast<size_t>(2 * i + 1)],
              std::vector<float>(3, static_cast<float>(10 * i)));
  }
  // Tickets are free again; a smaller read fits into a larger one's buffer.
  std::vector<float> last(2, -1);
  const Device::Piece piece = {last.data(), x.raw(), 8};
  device_->FinishRead(device_->StartRead({&piece, 1}));
  EXPECT_EQ(last, std::vector<float>(2, 99));
}

// The trainer's other threads send and read while sections are put together.
TEST_P(OnDevice, OtherThreadsMaySendAndReadMeanwhile) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x"), y = Take(memory, "y"), own = Take(memory, "own");
  Context main(device_);
  memory.Commit(&main);
  Fill(main, {.x = x, .value = 1});
  std::thread other([&] {
    for (int round = 1; round <= 20; ++round) {
      const std::vector<float> sent = All(static_cast<float>(round));
      main.Write(sent.data(), own);
      EXPECT_EQ(Values(main, own), sent);
      main.Wait();
    }
  });
  for (int round = 0; round < 200; ++round)
    device_->RunTogether(5, [&] { Add(main, {.x = x, .y = y}); });
  other.join();
  EXPECT_EQ(Values(main, y), All(200));
}

TEST_P(OnDevice, StampsMeasureTheOpsBetween) {
  Memory memory(Memory::Mode::kReal, device_);
  const Tensor x = Take(memory, "x");
  Context main(device_);
  memory.Commit(&main);
  for (int round = 0; round < 2; ++round) {
    device_->Stamp(0);
    for (int i = 0; i < 20; ++i) Fill(main, {.x = x, .value = 1});
    device_->Stamp(Device::kStamps - 1);
    main.Wait();
    EXPECT_GT(device_->SecondsBetween(0, Device::kStamps - 1), 0);
    EXPECT_LT(device_->SecondsBetween(0, Device::kStamps - 1), 10);
  }
}

TEST_P(OnDevice, OpsReachMemoryOfTheHost) {
  const int64_t bytes = elements() * 4;
  void* block = device_->AllocateOnHost(bytes, "table");
  ASSERT_NE(block, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 256, 0U);
  EXPECT_TRUE(device_->Owns(block));
  EXPECT_TRUE(device_->Owns(static_cast<char*>(block) + bytes - 1));
  EXPECT_EQ(device_->AllocateOnHost(0, "nothing"), nullptr);
  const Context main(device_);
  const Tensor x(block, DType::kF32, {elements()});
  EXPECT_EQ(Values(main, x), All(0));
  std::vector<float> values = All(3);
  main.Write(values.data(), x);
  const Tensor y(device_->Allocate(bytes, "y"), DType::kF32, {elements()});
  Fill(main, {.x = y, .value = 3});
  Add(main, {.x = y, .y = x});
  EXPECT_EQ(Values(main, x), All(6));
  const Device::Piece piece = {values.data(), x.raw(), x.bytes()};
  device_->FinishRead(device_->StartRead({&piece, 1}));
  EXPECT_EQ(values, All(6));
  device_->Free(y.raw(), bytes);
  device_->FreeOnHost(block, bytes);
  if (device_->kind() == DeviceKind::kCuda) {
    EXPECT_FALSE(device_->Owns(block));
  }
}

using OnDeviceDeathTest = OnDevice;
INSTANTIATE_TEST_SUITE_P(, OnDeviceDeathTest,
                         ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda),
                         [](const auto& test) { return std::string(NameOf(test.param)); });

// A GPU's state does not survive the fork of a death test: the process is started anew.
TEST_P(OnDeviceDeathTest, SectionsAreNotWaitedFor) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Context main(device_);
  EXPECT_DEATH(device_->RunTogether(1, [&] { main.Wait(); }), "Device::Wait inside RunTogether");
  EXPECT_DEATH(device_->RunTogether(1, [&] { device_->Send({}, StreamName::kMain); }),
               "Device::Send inside RunTogether");
  EXPECT_DEATH(device_->RunTogether(1, [&] { device_->Read({}); }),
               "Device::Read inside RunTogether");
  EXPECT_DEATH(device_->RunTogether(1, [&] { device_->StartRead({}); }),
               "Device::StartRead inside RunTogether");
  EXPECT_DEATH(device_->RunTogether(1, [&] { device_->Stamp(0); }),
               "Device::Stamp inside RunTogether");
}

}  // namespace
}  // namespace overtok

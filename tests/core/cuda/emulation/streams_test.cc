// The emulated device's two streams: what Order() says makes results equal under every schedule,
// what it does not say makes them differ under some; sections that run together, reads that were
// started, scratch of the side stream, memory of the host that ops reach.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/cuda/emulation/device.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/memory.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;

using emulation::Schedule;
using emulation::ScopedSchedule;

constexpr Schedule kSchedules[] = {Schedule::kInOrder, Schedule::kSideFirst, Schedule::kMainFirst};
constexpr int64_t kElements = 100;

// Two streams of a device and tensors on it that begin as zeros.
struct Machine {
  explicit Machine(Device* the_device)
      : memory(Memory::Mode::kReal, the_device), main(the_device), device(the_device) {}
  Tensor Take(const char* name) {
    return memory.Take(Purpose::kActivations, name, DType::kF32, {kElements});
  }
  void Commit() {
    memory.Commit(&main);
    side = main.Side();
  }
  float First(const Tensor& x) const {
    std::vector<float> values(kElements);
    main.Read(x, values.data());
    return values[0];
  }

  Memory memory;
  Context main;
  Context side = main;
  Device* device;
};

Device* const kDevices[] = {
    EmulatedDevice(),
#if defined(OVERTOK_TEST_CHECKED)
    CheckedDevice(),
#endif
};

// What `run` returns under each schedule, on each device.
std::set<float> ResultsOf(const std::function<float(Machine&)>& run) {
  std::set<float> results;
  for (Device* device : kDevices) {
    for (const Schedule schedule : kSchedules) {
      const ScopedSchedule scope(schedule);
      Machine machine(device);
      results.insert(run(machine));
    }
  }
  return results;
}

// y += x on the side stream between two ops of the main stream; which orders are said.
std::function<float(Machine&)> ThereAndBack(bool there, bool back) {
  return [there, back](Machine& m) {
    const Tensor x = m.Take("x"), y = m.Take("y"), z = m.Take("z");
    m.Commit();
    Fill(m.main, {.x = x, .value = 3});
    if (there) m.side.Follow(m.main);
    Add(m.side, {.x = x, .y = y});
    if (back) m.main.Follow(m.side);
    Add(m.main, {.x = y, .y = z});
    return m.First(z);
  };
}

TEST(EmulatedStreams, OrderMakesResultsEqualUnderEverySchedule) {
  EXPECT_THAT(ResultsOf(ThereAndBack(true, true)), ElementsAre(3.0F));
}

TEST(EmulatedStreams, AMissingOrderShows) {
  EXPECT_THAT(ResultsOf(ThereAndBack(false, true)), ElementsAre(0.0F, 3.0F));
  EXPECT_THAT(ResultsOf(ThereAndBack(true, false)), ElementsAre(0.0F, 3.0F));
}

// An order may be behind another one, with no op between.
TEST(EmulatedStreams, OrdersWithoutOpsBetweenArePassed) {
  EXPECT_THAT(ResultsOf([](Machine& m) {
                const Tensor x = m.Take("x");
                m.Commit();
                m.side.Follow(m.main);
                m.main.Follow(m.side);
                m.side.Follow(m.main);
                m.main.Follow(m.side);
                Fill(m.main, {.x = x, .value = 2});
                m.side.Follow(m.main);
                m.main.Follow(m.side);
                m.device->RunTogether(1, [&] {
                  m.side.Follow(m.main);
                  m.main.Follow(m.side);
                });
                return m.First(x);
              }),
              ElementsAre(2.0F));
}

// What the side stream still reads, the main stream may not overwrite.
std::function<float(Machine&)> Overwrite(bool ordered, bool by_sending) {
  return [ordered, by_sending](Machine& m) {
    const Tensor x = m.Take("x"), y = m.Take("y");
    m.Commit();
    Fill(m.main, {.x = x, .value = 3});
    m.side.Follow(m.main);
    Add(m.side, {.x = x, .y = y});
    if (ordered) m.main.Follow(m.side);
    if (by_sending) {
      std::vector<float> values(kElements, 8);
      m.main.Write(values.data(), x);
      std::fill(values.begin(), values.end(), 9.0F);  // the call has taken what it sends
    } else {
      Fill(m.main, {.x = x, .value = 8});
    }
    m.main.Follow(m.side);
    return m.First(y) + 100 * m.First(x);
  };
}

TEST(EmulatedStreams, WhatIsStillReadIsNotOverwritten) {
  for (const bool by_sending : {false, true}) {
    EXPECT_THAT(ResultsOf(Overwrite(true, by_sending)), ElementsAre(803.0F));
    EXPECT_THAT(ResultsOf(Overwrite(false, by_sending)), ElementsAre(803.0F, 808.0F));
  }
}

// Reading waits for the main stream alone; Wait for both.
TEST(EmulatedStreams, ReadingDoesNotWaitForTheSideStream) {
  for (const bool waits : {false, true}) {
    const std::set<float> results = ResultsOf([waits](Machine& m) {
      const Tensor x = m.Take("x");
      m.Commit();
      Fill(m.side, {.x = x, .value = 4});
      if (waits) m.main.Wait();
      return m.First(x);
    });
    if (waits) {
      EXPECT_THAT(results, ElementsAre(4.0F));
    } else {
      EXPECT_THAT(results, ElementsAre(0.0F, 4.0F));
    }
  }
}

TEST(EmulatedStreams, InputsAreSentOnTheStreamThatAsks) {
  for (const bool ordered : {false, true}) {
    const std::set<float> results = ResultsOf([ordered](Machine& m) {
      const Memory::InputsOf group(&m.memory, InputGroup::kAhead);
      const Tensor input = m.memory.TakeInput(Purpose::kBatches, "in", DType::kF32, {kElements});
      const Tensor y = m.Take("y");
      m.Commit();
      std::fill_n(input.data<float>(), kElements, 6.0F);
      m.side.SendInputs(InputGroup::kAhead);
      std::fill_n(input.data<float>(), kElements, 7.0F);
      if (ordered) m.main.Follow(m.side);
      Add(m.main, {.x = m.main.OnDevice(input), .y = y});
      return m.First(y);
    });
    if (ordered) {
      EXPECT_THAT(results, ElementsAre(6.0F));
    } else {
      EXPECT_THAT(results, ElementsAre(0.0F, 6.0F));
    }
  }
}

TEST(EmulatedStreams, ProductsTakeTheirPlaceAmongOps) {
  EXPECT_THAT(ResultsOf([](Machine& m) {
                const Tensor x = m.Take("x"), y = m.Take("y"), z = m.Take("z");
                m.Commit();
                Fill(m.main, {.x = x, .value = 2});
                m.side.Follow(m.main);
                Fill(m.side, {.x = y, .value = 3});
                m.main.Follow(m.side);
                MatmulArgs product = {
                    .a = x.Reshape({10, 10}), .b = y.Reshape({10, 10}), .c = z.Reshape({10, 10})};
                Matmul(m.main, product);
                product = {};
                Fill(m.main, {.x = x, .value = 0});
                return m.First(z);
              }),
              ElementsAre(60.0F));
}

TEST(EmulatedStreamsDeathTest, ProductsOfTheSideStreamAreRefused) {
  Machine m(EmulatedDevice());
  const Tensor x = m.memory.Take(Purpose::kActivations, "x", DType::kF32, {4, 4});
  const Tensor y = m.memory.Take(Purpose::kActivations, "y", DType::kF32, {4, 4});
  m.Commit();
  EXPECT_DEATH(Matmul(m.side, {.a = x, .b = x, .c = y}), "products run on the main stream");
}

// Tables of the trainer are read one step late: values of their point, whatever came after.
TEST(EmulatedStreams, AStartedReadHasTheValuesOfItsPoint) {
  for (Device* device : kDevices) {
    for (const Schedule schedule : kSchedules) {
      const ScopedSchedule scope(schedule);
      Machine m(device);
      const Tensor x = m.Take("x"), y = m.Take("y");
      m.Commit();
      std::vector<float> a(kElements, -1), b(kElements, -1), c(1, -1);
      Fill(m.main, {.x = x, .value = 1});
      const Device::Piece both[] = {{a.data(), x.raw(), x.bytes()}, {b.data(), y.raw(), y.bytes()}};
      const int64_t first = device->StartRead(both);
      Fill(m.main, {.x = x, .value = 2});
      Fill(m.main, {.x = y, .value = 2});
      const Device::Piece one = {c.data(), x.raw(), 4};
      const int64_t second = device->StartRead({&one, 1});
      Fill(m.main, {.x = x, .value = 3});
      EXPECT_EQ(a[0], -1) << "the host's memory is written by FinishRead";
      device->FinishRead(second);
      device->FinishRead(first);
      EXPECT_EQ(a, std::vector<float>(kElements, 1.0F));
      EXPECT_EQ(b, std::vector<float>(kElements, 0.0F));
      EXPECT_EQ(c[0], 2);
      EXPECT_EQ(m.First(x), 3);
    }
  }
}

TEST(EmulatedStreamsDeathTest, ReadsAreCounted) {
  Machine m(EmulatedDevice());
  const Tensor x = m.Take("x");
  m.Commit();
  float value = 0;
  const Device::Piece piece = {&value, x.raw(), 4};
  EXPECT_DEATH(m.device->FinishRead(0), "was not started");
  std::vector<int64_t> tickets;
  for (int i = 0; i < Device::kReadsInFlight; ++i)
    tickets.push_back(m.device->StartRead({&piece, 1}));
  EXPECT_DEATH(m.device->StartRead({&piece, 1}), "more than 4 reads");
  for (const int64_t ticket : tickets) m.device->FinishRead(ticket);
  EXPECT_EQ(m.device->StartRead({&piece, 1}), tickets[0]);
  m.device->FinishRead(tickets[0]);
}

// A section: its own fork and join, in both directions.
std::function<float(Machine&)> Together(bool ordered) {
  return [ordered](Machine& m) {
    const Tensor x = m.Take("x"), y = m.Take("y"), z = m.Take("z");
    m.Commit();
    for (int round = 1; round <= 3; ++round) {
      Fill(m.main, {.x = x, .value = static_cast<double>(round)});
      m.device->RunTogether(1, [&] {
        Add(m.side, {.x = x, .y = y});
        if (ordered) m.main.Follow(m.side);
        Add(m.main, {.x = y, .y = z});
        m.side.Follow(m.main);
        Add(m.side, {.x = x, .y = y});
      });
      Add(m.main, {.x = y, .y = z});
    }
    return m.First(z);
  };
}

TEST(EmulatedStreams, SectionsRunAsOneOpOfTheMainStream) {
  // Three rounds: y 1, z 1, y 2, z 3; y 4, z 7, y 6, z 13; y 9, z 22, y 12, z 34.
  EXPECT_THAT(ResultsOf(Together(true)), ElementsAre(34.0F));
  EXPECT_GT(ResultsOf(Together(false)).size(), 1U);
}

// Whatever the schedule, nothing has run before the section is complete.
TEST(EmulatedStreams, SectionsWaitUntilTheyAreKnown) {
  for (Device* device : kDevices) {
    Machine m(device);
    const Tensor x = m.Take("x");
    m.Commit();
    Fill(m.main, {.x = x, .value = 1});
    m.device->RunTogether(1, [&] {
      Fill(m.main, {.x = x, .value = 2});
      const emulation::DeviceAccess access;
      EXPECT_EQ(*static_cast<const volatile float*>(x.raw()), 1);
    });
    EXPECT_EQ(m.First(x), 2);
  }
}

TEST(EmulatedStreamsDeathTest, NothingIsWaitedForInSections) {
  Machine m(EmulatedDevice());
  const Tensor x = m.Take("x");
  m.Commit();
  std::vector<float> values(kElements);
  const auto in_section = [&](const std::function<void()>& call) {
    m.device->RunTogether(1, [&] {
      Fill(m.main, {.x = x, .value = 2});
      call();
    });
  };
  EXPECT_DEATH(in_section([&] { m.main.Read(x, values.data()); }), "Device::Read inside");
  EXPECT_DEATH(in_section([&] { m.main.Write(values.data(), x); }), "Device::Send inside");
  EXPECT_DEATH(in_section([&] { m.main.Wait(); }), "Device::Wait inside");
  EXPECT_DEATH(in_section([&] { m.device->Stamp(0); }), "Device::Stamp inside");
  EXPECT_DEATH(in_section([&] { m.device->StartRead({}); }), "Device::StartRead inside");
  EXPECT_DEATH(in_section([&] { m.device->FinishRead(0); }), "Device::FinishRead inside");
  EXPECT_DEATH(in_section([&] { m.device->Allocate(4, "x"); }), "Device::Allocate inside");
  EXPECT_DEATH(in_section([&] { m.device->RunTogether(2, [] {}); }), "Device::RunTogether inside");
}

// On a GPU a section's side ops are a branch of the graph, not the side stream.
TEST(EmulatedStreams, SectionsAreNotOrderedWithTheSideStreamOutside) {
  for (const bool ordered : {false, true}) {
    const std::set<float> results = ResultsOf([ordered](Machine& m) {
      const Tensor x = m.Take("x"), y = m.Take("y");
      m.Commit();
      Fill(m.side, {.x = x, .value = 5});
      if (ordered) m.main.Follow(m.side);
      m.device->RunTogether(1, [&] { Add(m.side, {.x = x, .y = y}); });
      return m.First(y);
    });
    if (ordered) {
      EXPECT_THAT(results, ElementsAre(5.0F));
    } else {
      EXPECT_THAT(results, ElementsAre(0.0F, 5.0F));
    }
  }
}

TEST(EmulatedStreams, StampsMarkWhenTheDeviceIsThere) {
  for (const Schedule schedule : kSchedules) {
    const ScopedSchedule scope(schedule);
    Machine m(EmulatedDevice());
    const Tensor x = m.Take("x");
    m.Commit();
    m.device->Stamp(3);
    Fill(m.main, {.x = x, .value = 1});
    m.device->Stamp(4);
    if (schedule != Schedule::kInOrder) {
      EXPECT_DEATH(m.device->SecondsBetween(3, 4), "lie ahead of the device");
    }
    m.First(x);
    EXPECT_GT(m.device->SecondsBetween(3, 4), 0);
    EXPECT_LT(m.device->SecondsBetween(3, 4), 10);
  }
}

// What had not run by then would write where nothing is: checked, that ends the program.
TEST(EmulatedStreams, FreeingMemoryWaits) {
  for (Device* device : kDevices) {
    for (const Schedule schedule : kSchedules) {
      const ScopedSchedule scope(schedule);
      const Context main(device);
      const Tensor x(device->Allocate(4 * kElements, "x"), DType::kF32, {kElements});
      Fill(main.Side(), {.x = x, .value = 1});
      device->Free(x.raw(), x.bytes());
      device->Wait();
    }
  }
}

TEST(EmulatedStreams, TheSideStreamHasScratchOfItsOwn) {
  for (Device* device : kDevices) {
    Memory memory(Memory::Mode::kReal, device);
    memory.NeedScratch(1000);
    memory.NeedScratch(2000, StreamName::kSide);
    Context main(device);
    memory.Commit(&main);
    const Context side = main.Side();
    EXPECT_EQ(memory.bytes(Purpose::kScratch), 3000);
    const char* mine = static_cast<const char*>(main.Scratch(1000));
    const char* its = static_cast<const char*>(side.Scratch(2000));
    EXPECT_TRUE(mine + 1000 <= its || its + 2000 <= mine);
    EXPECT_TRUE(device->Owns(mine) && device->Owns(its));
  }
}

TEST(EmulatedStreamsDeathTest, HostMemoryOfTheDeviceIsForOpsAlone) {
  for (Device* device : kDevices) {
    Machine m(device);
    const Tensor x = m.memory.TakeOnHost(Purpose::kParameters, "table", DType::kF32, {kElements});
    m.Commit();
    EXPECT_EQ(m.memory.host_bytes(), x.bytes());
    EXPECT_EQ(m.memory.bytes(Purpose::kParameters), 0);
    EXPECT_TRUE(device->Owns(x.raw()));
    EXPECT_EQ(m.First(x), 0);
    Fill(m.main, {.x = x, .value = 5});
    EXPECT_EQ(m.First(x), 5);
    EXPECT_DEATH(*static_cast<volatile float*>(x.raw()) = 1, "");
  }
}

}  // namespace
}  // namespace overtok

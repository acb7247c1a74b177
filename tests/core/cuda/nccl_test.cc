// Ranks that talk through NCCL, as threads over the stand-in (nccl_stand_in.h): the exchanges that
// every communicator does, that device tensors take NCCL and host ones do not, and lost peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>
#include <vector>

#include "core/comm/mesh.h"
#include "core/cuda/emulation/device.h"
#include "core/cuda/nccl_communicator.h"
#include "tests/core/comm/exchange_checks.h"
#include "tests/core/cuda/nccl_stand_in.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::NcclFault;
using testing::PlanNcclFault;
using Message = Communicator::Message;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;

using Body = std::function<void(Communicator&)>;

// Calls body(world) on n threads over the stand-in.
void RunOverNccl(int n, const Body& body, const NcclLimits& limits = {}) {
  testing::RunOnRanks(n, [&](Communicator& threads) {
    const auto world = MakeNcclWorld(threads.Divide(0), EmulatedDevice(), testing::StandInApi(),
                                     testing::StandInStreams(), limits);
    body(*world);
  });
}
void RunOnDevice(int n, const Body& body) {
  RunOverNccl(n, [&body](Communicator& world) {
    const testing::TensorsOn place(EmulatedDevice());
    body(world);
  });
}

// Elements on the device.
class Floats {
 public:
  explicit Floats(std::vector<float> values)
      : values_(std::move(values)), bytes_(static_cast<int64_t>(values_.size() * sizeof(float))) {
    data_ = static_cast<float*>(EmulatedDevice()->Allocate(bytes_, "elements of a test"));
    const Device::Piece piece{data_, values_.data(), bytes_};
    EmulatedDevice()->Send({&piece, 1}, StreamName::kMain);
  }
  ~Floats() { EmulatedDevice()->Free(data_, bytes_); }
  Floats(const Floats&) = delete;
  Floats& operator=(const Floats&) = delete;
  Tensor tensor() const { return Tensor(data_, {static_cast<int64_t>(values_.size())}); }
  const std::vector<float>& values() {
    EmulatedDevice()->Read({values_.data(), data_, bytes_});
    return values_;
  }

 private:
  std::vector<float> values_;
  int64_t bytes_;
  float* data_;
};

// Sends `mine` to the next rank and receives from the one before.
void PassOn(Communicator& world, const Floats& mine, const Floats& theirs) {
  const int n = world.size(), me = world.rank();
  const Message send{(me + 1) % n, mine.tensor()}, receive{(me + n - 1) % n, theirs.tensor()};
  world.Exchange({&send, 1}, {&receive, 1}, Traffic::kGradients);
}

class Nccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { testing::ResetNcclFacts(); }
  void TearDown() override { EXPECT_EQ(testing::NcclFacts().live, 0); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Nccl, ::testing::Values(1, 2, 3, 4));

TEST_P(Nccl, TensorsOnTheDevice) {
  RunOnDevice(GetParam(), testing::CheckUnevenAndEmptyMessages);
  RunOnDevice(GetParam(), testing::CheckGuardsBesideOneFloat);
  RunOnDevice(GetParam(), testing::CheckEveryDType);
  RunOnDevice(GetParam(), testing::CheckOrderOfExchangesInFlight);
  RunOnDevice(GetParam(), testing::CheckGatherInPlace);
  RunOnDevice(GetParam(), testing::CheckBroadcasts);
  RunOnDevice(GetParam(), testing::CheckBytesSent);
  const testing::StandInFacts facts = testing::NcclFacts();
  EXPECT_EQ(facts.gathers > 0, GetParam() > 1);
  EXPECT_EQ(facts.messages > 0, GetParam() > 1);
}

// The control plane: nothing in host memory goes through NCCL.
TEST_P(Nccl, TensorsInHostMemory) {
  RunOverNccl(GetParam(), testing::CheckUnevenAndEmptyMessages);
  RunOverNccl(GetParam(), testing::CheckEveryDType);
  RunOverNccl(GetParam(), testing::CheckOrderOfExchangesInFlight);
  RunOverNccl(GetParam(), testing::CheckGatherInPlace);
  RunOverNccl(GetParam(), testing::CheckSumsAreEqualBits);
  RunOverNccl(GetParam(), testing::CheckMaximaAndFlags);
  RunOverNccl(GetParam(), testing::CheckBroadcasts);
  RunOverNccl(GetParam(), testing::CheckBytesSent);
  const testing::StandInFacts facts = testing::NcclFacts();
  EXPECT_EQ(facts.gathers, 0);
  EXPECT_EQ(facts.messages, 0);
}

class NcclRanks : public Nccl {};
INSTANTIATE_TEST_SUITE_P(Four, NcclRanks, ::testing::Values(4));

TEST_P(NcclRanks, GroupsOfAMesh) {
  RunOnDevice(4, testing::CheckGroupsOfAMesh);
  RunOverNccl(4, testing::CheckGroupsOfAMesh);
}

// A communicator never takes an id that another one had.
TEST_P(NcclRanks, EveryGroupHasAnIdOfItsOwn) {
  RunOverNccl(4, [](Communicator& world) { const Mesh first(&world, 2), second(&world, 2); });
  const std::vector<std::string> ids = testing::NcclFacts().ids;
  // The world, and for each mesh two data groups and two tensor groups.
  EXPECT_EQ(ids.size(), 9U);
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 9U);
}

// A transfer on the way holds neither the host nor host messages of the same exchange.
TEST_P(NcclRanks, HostAndDeviceInOneExchange) {
  RunOverNccl(4, [](Communicator& world) {
    const int me = world.rank(), next = (me + 1) % 4, last = (me + 3) % 4;
    Floats mine({static_cast<float>(me)}), theirs({-1});
    float host = static_cast<float>(10 * me), host_in = -1;
    const Message sends[] = {{next, mine.tensor()}, {next, Tensor(&host, {1})}};
    const Message receives[] = {{last, theirs.tensor()}, {last, Tensor(&host_in, {1})}};
    world.Exchange(sends, receives, Traffic::kTables);
    EXPECT_EQ(theirs.values()[0], static_cast<float>(last));
    EXPECT_EQ(host_in, static_cast<float>(10 * last));
  });
}

NcclLimits Short() {
  NcclLimits limits;
  limits.call = limits.transfer = std::chrono::milliseconds(600);
  limits.abort = std::chrono::milliseconds(300);
  return limits;
}

// All of a job's ranks are one process here, so the first that notices ends the program; the
// planted rank itself keeps waiting for nothing.
TEST(NcclDeathTest, APeerWhoseCallFails) {
  const auto run = [] {
    RunOverNccl(2, [](Communicator& world) {
      Floats mine({1}), theirs({0});
      PassOn(world, mine, theirs);
      if (world.rank() == 1) PlanNcclFault(NcclFault::kError, 1);
      PassOn(world, mine, theirs);
    });
  };
  EXPECT_EXIT(run(), ExitedWithCode(1),
              "aborted\n(.|\n)*rank 1 of 2: an exchange .* failed: system error; ending all ranks");
}

TEST(NcclDeathTest, APeerThatDies) {
  const auto run = [] {
    RunOverNccl(3, [](Communicator& world) {
      Floats mine({1}), all({0, 0, 0});
      world.AllGather(mine.tensor(), all.tensor(), Traffic::kWeights);
      if (world.rank() == 2) {
        PlanNcclFault(NcclFault::kDeath, 0);
        Request request = world.StartAllGather(mine.tensor(), all.tensor(), Traffic::kWeights);
        while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
      }
      world.AllGather(mine.tensor(), all.tensor(), Traffic::kWeights);
    });
  };
  const auto begin = std::chrono::steady_clock::now();
  // The default limits are minutes: it is NCCL that tells of it.
  EXPECT_EXIT(run(), ExitedWithCode(1),
              "lost a peer or failed: remote error .rank 2 closed its connection.; ending");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
}

TEST(NcclDeathTest, APeerThatHangsInATransfer) {
  const auto run = [] {
    RunOverNccl(
        2,
        [](Communicator& world) {
          Floats mine({1}), theirs({0});
          PassOn(world, mine, theirs);
          if (world.rank() == 1) PlanNcclFault(NcclFault::kHang, 0);
          PassOn(world, mine, theirs);
        },
        Short());
  };
  EXPECT_EXIT(run(), ExitedWithCode(1),
              "a peer has not taken its part for 0.6 s in exchange 1 .2 messages, the first with "
              "rank .. of 8 bytes, as rank . of a group of 2; ending");
}

TEST(NcclDeathTest, APeerThatNeverComes) {
  const auto run = [] {
    testing::RunOnRanks(2, [](Communicator& threads) {
      if (threads.rank() == 1) PlanNcclFault(NcclFault::kHang, 0);
      MakeNcclWorld(threads.Divide(0), EmulatedDevice(), testing::StandInApi(),
                    testing::StandInStreams(), Short());
    });
  };
  EXPECT_EXIT(run(), ExitedWithCode(1),
              "a peer has not answered ncclCommInitRankConfig for 0.6 s; ending");
}

TEST(NcclDeathTest, AMessageOfAnotherCount) {
  const auto run = [] {
    RunOverNccl(2, [](Communicator& world) {
      Floats mine(std::vector<float>(5)), theirs(std::vector<float>(world.rank() == 0 ? 5 : 4));
      PassOn(world, mine, theirs);
    });
  };
  EXPECT_EXIT(run(), ExitedWithCode(1),
              "message 0 from rank 0 to rank 1 has 5 elements of type 7, expected 4");
}

TEST(NcclDeathTest, ARankThatGivesUp) {
  const auto run = [] {
    RunOverNccl(2, [](Communicator& world) {
      Floats mine({1}), theirs({0});
      if (world.rank() == 0) world.Abort(42);
      PassOn(world, mine, theirs);
    });
  };
  EXPECT_EXIT(run(), ExitedWithCode(42), "aborted");
}

TEST(NcclApi, NamesWhatIsMissing) {
  const auto none = FindNccl([](const char*) -> void* { return nullptr; });
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no function ncclGetVersion"));
  const auto old = FindNccl([](const char* name) -> void* {
    if (std::string(name) != "ncclGetVersion") return nullptr;
    return reinterpret_cast<void*>(+[](int* version) {
      *version = 21605;
      return ncclSuccess;
    });
  });
  EXPECT_THAT(std::string(old.status().message()), HasSubstr("NCCL 2.16.5 is too old"));
  EXPECT_EQ(NcclVersionText(22809), "2.28.9");
}

}  // namespace
}  // namespace overtok

// Runs with hashed tables in host memory, on the emulated device: they have the bits of runs with
// tables on the device, over steps, evaluations, a stop and a continuation, and over two ranks,
// whatever the device's streams do in the order that is left to them.
#include <csignal>
#include <string>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/ranks_run.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/train_loop.h"

namespace overtok {
namespace {

using emulation::Schedule;
using emulation::ScopedSchedule;
using testing::Differing;
using testing::RanksResult;
using testing::RunTrace;
using testing::TemporaryDirectory;

// Input tables and tables of n-gram heads, rows in bf16.
std::vector<std::string> Tables(const std::string& memory) {
  return {
      "model.ngram_embedding={orders: [2, 3], rows: 101, splits: 1, width: 6, each_pass: "
      "reinitialize}",
      "model.ngram_head={orders: [2], rows: 77, width: 5}",
      "optimizer.tables={storage: bf16, memory: " + memory + "}"};
}

class EmulatedTablesTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(testing::MakeTinyCorpus(directory_.path())); }

  // A run that is stopped after a step and continued, there with tables elsewhere; -1: is not.
  absl::StatusOr<RunTrace> Train(const std::string& run, const std::string& memory,
                                 Schedule schedule, int64_t stop_after = -1,
                                 const std::string& continued = "device") {
    const ScopedSchedule scoped(schedule);
    for (const bool again : {false, true}) {
      std::vector<std::string> overrides = Tables(again ? continued : memory);
      overrides.insert(overrides.end(),
                       {"train.device=emulated", "train.steps=5", "model.num_hidden_layers=1",
                        "eval.every_steps=3", "eval.at_start=false"});
      OT_ASSIGN_OR_RETURN(LoadedConfig loaded,
                          testing::TinyConfig(directory_.path(), run, overrides));
      TrainOptions options;
      options.after_step = [&](int64_t step) {
        if (!again && step == stop_after) std::raise(SIGTERM);
      };
      OT_ASSIGN_OR_RETURN(const int code,
                          overtok::Train(std::move(loaded), options, testing::Alone()));
      if (code == 0) break;
    }
    return testing::TraceOf(directory_.File(run));
  }

  TemporaryDirectory directory_;
};

TEST_F(EmulatedTablesTest, RunsHaveTheBitsOfTablesOnTheDevice) {
  const absl::StatusOr<RunTrace> device = Train("device", "device", Schedule::kInOrder);
  OT_ASSERT_OK(device);
  ASSERT_FALSE(device->metrics.empty());
  const absl::StatusOr<RunTrace> hosts[] = {Train("whole", "host", Schedule::kMainFirst),
                                            Train("host", "host", Schedule::kSideFirst, 2, "host"),
                                            Train("elsewhere", "host", Schedule::kMainFirst, 1)};
  for (const absl::StatusOr<RunTrace>& host : hosts) {
    OT_ASSERT_OK(host);
    EXPECT_EQ(host->state.model_hash, device->state.model_hash);
    EXPECT_EQ(host->state.optimizer_hash, device->state.optimizer_hash);
    EXPECT_EQ(host->metrics, device->metrics);
  }
}

TEST_F(EmulatedTablesTest, TwoRanksHaveTheBitsOfTablesOnTheDevice) {
  const auto run = [&](const std::string& memory, Schedule schedule) {
    const ScopedSchedule scoped(schedule);
    std::vector<std::string> overrides = testing::Ot2();
    overrides.insert(overrides.end(), {testing::Sampled(60, 2), "model.num_hidden_layers=1",
                                       "optimizer.tables={storage: bf16, memory: " + memory + "}"});
    return testing::TrainOnRanks(testing::RanksConfig(overrides),
                                 {.data = 2, .steps = 2, .device = EmulatedDevice()});
  };
  const RanksResult device = run("device", Schedule::kInOrder);
  ASSERT_EQ(device.error, "");
  for (const Schedule schedule : {Schedule::kSideFirst, Schedule::kMainFirst}) {
    const RanksResult host = run("host", schedule);
    ASSERT_EQ(host.error, "");
    EXPECT_EQ(Differing(host.gradients, device.gradients), "") << static_cast<int>(schedule);
    EXPECT_EQ(Differing(host.values, device.values), "") << static_cast<int>(schedule);
    EXPECT_EQ(Differing(host.state, device.state), "") << static_cast<int>(schedule);
  }
}

}  // namespace
}  // namespace overtok

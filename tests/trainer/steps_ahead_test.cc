// Steps that are asked for before the results of the one before are there: they have the bits of
// steps taken one by one, whatever the device's streams do in the order that is left to them, and a
// step that is not finite changes nothing, nor does the one that was asked for behind it.
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "core/io/hash.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/host_tensors.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

using emulation::Schedule;
using emulation::ScopedSchedule;

constexpr int64_t kSteps = 3;

struct Taken {
  std::vector<StepResult> results;
  uint64_t values = 0;  // hash of all values and states
};

// A model under training, with every method, and the batches of its first steps.
class Training {
 public:
  static absl::StatusOr<std::unique_ptr<Training>> Make(const std::string& root, Device* device,
                                                        std::vector<std::string> overrides) {
    const std::vector<std::string> methods = testing::MethodOverrides();
    overrides.insert(overrides.end(), methods.begin(), methods.end());
    overrides.emplace_back("model.num_hidden_layers=1");
    OT_ASSIGN_OR_RETURN(LoadedConfig loaded, testing::TinyConfig(root, "unused", overrides));
    OT_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(&loaded));
    auto training = std::make_unique<Training>(loaded.config, device);
    training->batches.resize(kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      OT_RETURN_IF_ERROR(FillBatch(*data.corpus, data.order, data.loader, step,
                                   &training->batches[static_cast<size_t>(step)]));
    }
    return training;
  }
  Training(const Config& config, Device* device)
      : memory_(Memory::Mode::kReal, device), train(config, &mesh_, &memory_) {
    train.Commit();
    train.Initialize();
  }

  absl::Status Start(int64_t step) { return train.Start(batches[static_cast<size_t>(step)], step); }
  uint64_t Values() {
    std::vector<ShardedTensor> all = train.optimizer().owned_values();
    for (const ShardedTensor& state : train.optimizer().state()) all.push_back(state);
    HostTensors host(train.context(), all);
    host.Read();
    uint64_t hash = 0;
    for (const ShardedTensor& entry : host.tensors())
      hash = Xxh3(entry.tensor.raw(), entry.tensor.bytes(), hash);
    return hash;
  }

 private:
  Memory memory_;
  Mesh mesh_;

 public:
  TrainStep train;
  std::vector<Batch> batches;
};

class StepsAheadTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(testing::MakeTinyCorpus(directory_.path())); }

  // open: steps that are open at a time.
  absl::StatusOr<Taken> Take(Device* device, int open, const std::vector<std::string>& overrides) {
    OT_ASSIGN_OR_RETURN(const auto training, Training::Make(directory_.path(), device, overrides));
    Taken taken;
    int64_t next = 0;
    while (taken.results.size() < static_cast<size_t>(kSteps)) {
      while (next < kSteps && training->train.open() < open) {
        OT_RETURN_IF_ERROR(training->Start(next++));
      }
      OT_ASSIGN_OR_RETURN(const StepResult result, training->train.Finish());
      taken.results.push_back(result);
    }
    taken.values = training->Values();
    return taken;
  }

  testing::TemporaryDirectory directory_;
};

void ExpectSame(const Taken& a, const Taken& b) {
  EXPECT_EQ(a.values, b.values);
  ASSERT_EQ(a.results.size(), b.results.size());
  for (size_t i = 0; i < a.results.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    const StepResult &x = a.results[i], &y = b.results[i];
    EXPECT_EQ(x.step, y.step);
    EXPECT_EQ(x.loss, y.loss);
    EXPECT_EQ(x.total_norm, y.total_norm);
    EXPECT_EQ(x.norms, y.norms);
    EXPECT_EQ(x.lr_scale, y.lr_scale);
    ASSERT_EQ(x.heads.size(), y.heads.size());
    for (size_t h = 0; h < x.heads.size(); ++h) {
      EXPECT_EQ(x.heads[h].loss, y.heads[h].loss);
      EXPECT_EQ(x.heads[h].candidates.present_mean, y.heads[h].candidates.present_mean);
    }
    ASSERT_EQ(x.tables.size(), y.tables.size());
    for (size_t t = 0; t < x.tables.size(); ++t)
      EXPECT_EQ(x.tables[t].rows_touched, y.tables[t].rows_touched);
  }
}

TEST_F(StepsAheadTest, HaveTheBitsOfStepsTakenOneByOne) {
  const absl::StatusOr<Taken> one = Take(EmulatedDevice(), 1, {"train.cuda_graphs=false"});
  OT_ASSERT_OK(one);
  EXPECT_NE(one->results[0].loss, one->results[1].loss);
  EXPECT_GT(one->results[0].device_seconds, 0);
  for (const Schedule schedule : {Schedule::kInOrder, Schedule::kSideFirst, Schedule::kMainFirst}) {
    const ScopedSchedule scoped(schedule);
    SCOPED_TRACE(::testing::Message() << "schedule " << static_cast<int>(schedule));
    const absl::StatusOr<Taken> two = Take(EmulatedDevice(), 2, {});
    OT_ASSERT_OK(two);
    ExpectSame(*two, *one);
  }
}

TEST_F(StepsAheadTest, TwoMayBeOpenOnTheCpuAsWell) {
  const absl::StatusOr<Taken> one = Take(CpuDevice(), 1, {}), two = Take(CpuDevice(), 2, {});
  OT_ASSERT_OK(one);
  OT_ASSERT_OK(two);
  ExpectSame(*two, *one);
}

// A weight that is not a number makes the loss and every gradient none.
TEST_F(StepsAheadTest, WhatIsNotFiniteChangesNothing) {
  for (Device* device : {CpuDevice(), EmulatedDevice()}) {
    for (const bool behind : {false, true}) {
      SCOPED_TRACE(::testing::Message() << NameOf(device->kind()) << (behind ? ", behind" : ""));
      const auto good = Training::Make(directory_.path(), device, {});
      const auto bad = Training::Make(directory_.path(), device, {});
      OT_ASSERT_OK(good);
      OT_ASSERT_OK(bad);
      Batch poisoned = (*bad)->batches[1];
      poisoned.loss_weight[3] = std::numeric_limits<float>::quiet_NaN();
      OT_ASSERT_OK((*good)->train.Run((*good)->batches[0], 0).status());
      OT_ASSERT_OK((*bad)->Start(0));
      OT_ASSERT_OK((*bad)->train.Start(poisoned, 1));
      OT_ASSERT_OK((*bad)->train.Finish().status());
      if (behind) OT_ASSERT_OK((*bad)->Start(2));
      OT_EXPECT_ERROR((*bad)->train.Finish(), "(nan) is not finite. Nothing was updated");
      EXPECT_EQ((*bad)->train.open(), 0);
      // The same from here on, rows of tables included.
      for (int64_t step = 1; step < kSteps; ++step) {
        const auto expected = (*good)->train.Run((*good)->batches[static_cast<size_t>(step)], step);
        const auto found = (*bad)->train.Run((*bad)->batches[static_cast<size_t>(step)], step);
        OT_ASSERT_OK(expected);
        OT_ASSERT_OK(found);
        EXPECT_EQ(found->loss, expected->loss);
        EXPECT_EQ(found->total_norm, expected->total_norm);
      }
      EXPECT_EQ((*bad)->Values(), (*good)->Values());
    }
  }
}

}  // namespace
}  // namespace overtok

// The CUDA backend end to end, on the emulated device: a step's losses and gradients against the
// CPU's, and whole runs with evaluation, checkpoints and every method, which keep their bits when
// they are stopped and continued, and on any number of threads.
#include <omp.h>

#include <cmath>
#include <csignal>
#include <map>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cuda/emulation/device.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/checkpoint.h"
#include "trainer/run_directory.h"
#include "trainer/train_loop.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

using testing::RunTrace;
using testing::TemporaryDirectory;
using testing::TinyConfig;

std::vector<std::string> Methods(std::vector<std::string> more) {
  std::vector<std::string> overrides = testing::MethodOverrides();
  overrides.insert(overrides.end(), more.begin(), more.end());
  return overrides;
}

// What a step came to: losses of the heads, and gradients and changes of the values by name.
struct Step {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> gradients, updates;
};

std::vector<float> ReadAll(const Context& context, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  context.Read(tensor, values.data());
  return values;
}

class EmulatedTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(testing::MakeTinyCorpus(directory_.path())); }

  std::string Run(const std::string& name) const { return directory_.File(name); }

  absl::StatusOr<Step> TakeStep(Device* device, const std::vector<std::string>& overrides) {
    OT_ASSIGN_OR_RETURN(LoadedConfig loaded, TinyConfig(directory_.path(), "unused", overrides));
    OT_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(&loaded));
    Memory memory(Memory::Mode::kReal, device);
    const Mesh mesh;
    TrainStep train(loaded.config, &mesh, &memory);
    train.Commit();
    train.Initialize();
    Batch batch;
    OT_RETURN_IF_ERROR(FillBatch(*data.corpus, data.order, data.loader, 0, &batch));
    Step step;
    for (const Parameter& parameter : train.parameters().all())
      step.updates[parameter.spec.name] = ReadAll(train.context(), parameter.value);
    OT_ASSIGN_OR_RETURN(const StepResult result, train.Run(batch, 0));
    for (const HeadResult& head : result.heads) step.losses.push_back(head.loss);
    for (const Parameter& parameter : train.parameters().all()) {
      const Tensor gradient =
          parameter.is_table() ? parameter.owned.used_gradient() : parameter.gradient;
      step.gradients[parameter.spec.name] = ReadAll(train.context(), gradient);
      std::vector<float>& update = step.updates[parameter.spec.name];
      const std::vector<float> after = ReadAll(train.context(), parameter.value);
      for (size_t i = 0; i < update.size(); ++i) update[i] = after[i] - update[i];
    }
    return step;
  }

  absl::StatusOr<int> Train(const std::string& run, const std::vector<std::string>& overrides,
                            int64_t stop_after = -1) {
    OT_ASSIGN_OR_RETURN(LoadedConfig loaded, TinyConfig(directory_.path(), run, overrides));
    TrainOptions options;
    options.after_step = [&](int64_t step) {
      if (step == stop_after) std::raise(SIGTERM);
    };
    return overtok::Train(std::move(loaded), options, testing::Alone());
  }
  void ExpectSame(const std::string& a, const std::string& b) {
    const absl::StatusOr<RunTrace> first = testing::TraceOf(Run(a)),
                                   second = testing::TraceOf(Run(b));
    OT_ASSERT_OK(first);
    OT_ASSERT_OK(second);
    EXPECT_EQ(first->state.model_hash, second->state.model_hash);
    EXPECT_EQ(first->state.optimizer_hash, second->state.optimizer_hash);
    EXPECT_EQ(first->state.ids_hash, second->state.ids_hash);
    EXPECT_EQ(first->metrics, second->metrics);
  }

  TemporaryDirectory directory_;
};

// |a - b| / |b|, Frobenius; infinite where a value is not finite.
double Difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return HUGE_VAL;
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

void ExpectClose(const Step& device, const Step& cpu, double loss, double gradient, double update) {
  ASSERT_EQ(device.losses.size(), cpu.losses.size());
  for (size_t h = 0; h < cpu.losses.size(); ++h)
    EXPECT_TRUE(std::abs(device.losses[h] - cpu.losses[h]) <= loss * cpu.losses[h]) << h;
  for (const auto& [name, expected] : cpu.gradients) {
    const double found = Difference(device.gradients.at(name), expected);
    EXPECT_TRUE(found <= gradient) << "gradient of " << name << " is off by " << found;
  }
  for (const auto& [name, expected] : cpu.updates) {
    const double found = Difference(device.updates.at(name), expected);
    EXPECT_TRUE(found <= update) << "update of " << name << " is off by " << found;
  }
}

TEST_F(EmulatedTest, StepsAgreeWithTheCpu) {
  for (const bool methods : {false, true}) {
    const auto overrides = [&](const char* precision) {
      const std::vector<std::string> of = {std::string("train.precision=") + precision};
      return methods ? Methods(of) : of;
    };
    // f32: sums of a few hundred products in another order, 6e-8 each, through two blocks.
    absl::StatusOr<Step> cpu = TakeStep(CpuDevice(), overrides("f32"));
    absl::StatusOr<Step> device = TakeStep(EmulatedDevice(), overrides("f32"));
    OT_ASSERT_OK(cpu);
    OT_ASSERT_OK(device);
    // Adam's first step goes by the sign of each gradient: one that turns, of n, adds 2 / sqrt(n).
    ExpectClose(*device, *cpu, 1e-6, 2e-5, 1e-3);
    // bf16: both round to 8 bits at each of some twenty ops, where sums of other order fall on
    // other sides, over 48 tokens. Judged traces allow 8e-2 between one of them and exact
    // arithmetic.
    cpu = TakeStep(CpuDevice(), overrides("bf16"));
    device = TakeStep(EmulatedDevice(), overrides("bf16"));
    OT_ASSERT_OK(cpu);
    OT_ASSERT_OK(device);
    // Updates: the signs of an eighth of the gradients may turn, 2 sqrt(1 / 8); an update that is
    // not made is off by 1.
    ExpectClose(*device, *cpu, 2e-3, 6e-2, 0.71);
  }
}

TEST_F(EmulatedTest, RunsContinueWithTheSameBitsOnAnyThreads) {
  const std::vector<std::string> overrides =
      Methods({"train.device=emulated", "train.steps=4", "eval.every_steps=3"});
  OT_ASSERT_OK(Train("whole", overrides));
  omp_set_num_threads(1);
  const absl::StatusOr<int> stopped = Train("parts", overrides, 2);
  OT_ASSERT_OK(stopped);
  EXPECT_NE(*stopped, 0);
  OT_ASSERT_OK(Train("parts", overrides));
  ExpectSame("whole", "parts");
}

// A checkpoint that is written in the background counts as soon as it is there, although a step is
// always open in between.
TEST_F(EmulatedTest, MarksCheckpointsBetweenOpenSteps) {
  absl::StatusOr<LoadedConfig> loaded =
      TinyConfig(directory_.path(), "marked",
                 {"train.device=emulated", "train.steps=40", "model.num_hidden_layers=1",
                  "eval.every_steps=0", "checkpoint.every_steps=20", "checkpoint.background=true"});
  OT_ASSERT_OK(loaded);
  const CheckpointStore store(RunDirectory::CheckpointsOf(Run("marked")), 2, testing::Alone());
  int64_t marked_after = 0;
  TrainOptions options;
  options.after_step = [&](int64_t step) {
    const absl::StatusOr<std::vector<int64_t>> marked = store.Marked();
    OT_ASSERT_OK(marked);
    if (marked_after == 0 && !marked->empty() && marked->back() == 20) marked_after = step;
    // Writing takes milliseconds; a machine that is busy gets seconds.
    if (step > 20 && marked_after == 0) absl::SleepFor(absl::Milliseconds(200));
  };
  OT_ASSERT_OK(overtok::Train(*std::move(loaded), options, testing::Alone()));
  EXPECT_GE(marked_after, 20);
  EXPECT_LT(marked_after, 39);
}

TEST_F(EmulatedTest, ComputesInBf16) {
  const absl::StatusOr<LoadedConfig> loaded =
      TinyConfig(directory_.path(), "bf16", {"train.device=emulated"});
  OT_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->config.train.precision, DType::kBF16);
  OT_EXPECT_ERROR(
      TinyConfig(directory_.path(), "wide", {"train.device=emulated", "model.head_dim=130"}),
      "expected at most 128");
}

}  // namespace
}  // namespace overtok

// Predicted steps: the ops that are counted are those that a device is asked for, their operations
// those of the formulas, and their times add up to the step and to the run.
#include "trainer/forecast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/bench_step.h"
#include "trainer/config/derived.h"
#include "trainer/config/load.h"
#include "trainer/plan_ranks.h"

namespace overtok {
namespace {

LoadedConfig Recipe(const std::string& name, std::vector<std::string> overrides = {},
                    const std::string& arm = "") {
  overrides.insert(overrides.end(), {"train.precision=bf16", "train.device=cpu"});
  std::vector<std::string> arms;
  if (!arm.empty())
    arms.push_back(absl::StrCat(OVERTOK_SOURCE_DIR, "/configs/arms/", arm, ".yaml"));
  absl::StatusOr<LoadedConfig> loaded = LoadConfig(
      absl::StrCat(OVERTOK_SOURCE_DIR, "/configs/recipes/", name, ".yaml"), overrides, arms);
  OT_CHECK(loaded.ok()) << std::string(loaded.status().message());
  return *std::move(loaded);
}

Hardware H200() {
  absl::StatusOr<Hardware> hardware =
      LoadHardware(absl::StrCat(OVERTOK_SOURCE_DIR, "/configs/hardware/h200.yaml"));
  OT_CHECK(hardware.ok()) << std::string(hardware.status().message());
  return *std::move(hardware);
}

StepForecast Forecast(const LoadedConfig& loaded) {
  absl::StatusOr<StepForecast> forecast =
      ForecastSteps(loaded.config, IdDistribution::kText, 1, H200());
  OT_CHECK(forecast.ok()) << std::string(forecast.status().message());
  return *std::move(forecast);
}

bool Near(double a, double b, double relative) { return std::abs(a - b) <= relative * std::abs(b); }

TEST(ForecastTest, AnOpTakesWhatHoldsItLonger) {
  const Hardware machine = H200();
  EXPECT_TRUE(Near(SecondsOf({.bytes = 4.2e9}, machine), 1e-3, 1e-12));
  EXPECT_TRUE(Near(SecondsOf({.bytes = 4.2e9, .row_bytes = 3.15e9}, machine), 2e-3, 1e-12));
  Work product = {.kind = Work::Kind::kProduct, .dtype = DType::kBF16, .flops = 6e11};
  EXPECT_TRUE(Near(SecondsOf(product, machine), 1e-3, 1e-12));
  product.bytes = 8.4e9;
  EXPECT_TRUE(Near(SecondsOf(product, machine), 2e-3, 1e-12));
  product = {.kind = Work::Kind::kProduct, .flops = 45e9};
  EXPECT_TRUE(Near(SecondsOf(product, machine), 1e-3, 1e-12));
  product.tf32 = true;
  product.flops = 300e9;
  EXPECT_TRUE(Near(SecondsOf(product, machine), 1e-3, 1e-12));
  Work attention = {.kind = Work::Kind::kAttentionBackward,
                    .dtype = DType::kBF16,
                    .head_width = 64,
                    .flops = 240e9};
  EXPECT_TRUE(Near(SecondsOf(attention, machine), 1e-3, 1e-12));
  attention.head_width = 128;
  EXPECT_TRUE(Near(SecondsOf(attention, machine), 240e9 / 270e12, 1e-12));
}

TEST(ForecastTest, ARateThatIsNotKnownFollowsFromTheAttentionsOfAllPasses) {
  const auto machine = ParseHardware(
      "device:\n  matmul_flops: {f32: 1e12, bf16: 4e12}\n  attention_flops: {f32: 1e12, bf16: "
      "2e12}\n"
      "  memory_bandwidth: 1e15\nnode:\n  devices: 1\n  link: {bandwidth: 1e9, latency: 0}\n",
      "m.yaml");
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  EXPECT_EQ(machine->row_bandwidth, 0.75e15);
  // A forward pass of 2e12 operations and its backward pass: 3 times that at attention_flops.
  Work work = {.kind = Work::Kind::kAttentionForward,
               .dtype = DType::kBF16,
               .head_width = 64,
               .flops = 2e12};
  double seconds = SecondsOf(work, *machine);
  work.kind = Work::Kind::kAttentionBackward;
  work.flops *= 2.5;
  seconds += SecondsOf(work, *machine);
  EXPECT_TRUE(Near(seconds, 3.0, 1e-12)) << seconds;
}

TEST(ForecastTest, OperationsAreThoseOfTheFormulas) {
  const LoadedConfig loaded = Recipe("300m");
  const StepForecast forecast = Forecast(loaded);
  ASSERT_EQ(forecast.stages.size(), 1u);
  std::map<StepPart, double> flops;
  for (const ForecastOp& op : forecast.stages[0].ops) flops[op.part] += op.op.work.flops;
  const ForwardFlops formula = ActualForwardFlops(loaded.config);
  const double tokens = forecast.tokens;
  EXPECT_TRUE(Near(flops[StepPart::kBlockProducts], 3 * formula.matrices * tokens, 1e-9));
  EXPECT_TRUE(Near(flops[StepPart::kHeadProducts], 3 * formula.head * tokens, 1e-9));
  // The formula also counts the operations of the softmax, 3 beside 4 D.
  EXPECT_TRUE(Near(flops[StepPart::kAttention], 3.5 * formula.attention * tokens, 0.015))
      << flops[StepPart::kAttention];
}

TEST(ForecastTest, PartsAndStagesAddUp) {
  const StepForecast forecast = Forecast(Recipe("130m", {}, "ss"));
  ASSERT_EQ(forecast.stages.size(), 4u);
  double shares = 0, mean = 0, before = 0;
  for (const ForecastStage& stage : forecast.stages) {
    double parts = 0;
    for (int p = 0; p < kStepParts; ++p) parts += stage.seconds(static_cast<StepPart>(p));
    EXPECT_TRUE(Near(parts, stage.seconds(), 1e-12));
    // Blocks had room: the head read its candidates, not all classes.
    const double classes = stage.seconds(StepPart::kHeadProducts);
    EXPECT_GT(classes, before * 1.4) << stage.span.candidates;
    before = classes;
    shares += stage.share;
    mean += stage.share * stage.seconds();
  }
  EXPECT_TRUE(Near(shares, 1, 1e-12));
  EXPECT_TRUE(Near(mean, forecast.seconds(), 1e-12));
  // The full softmax is the last stage of this schedule.
  const StepForecast full = Forecast(Recipe("130m"));
  EXPECT_TRUE(Near(full.seconds(), forecast.stages.back().seconds(), 1e-3));
}

// The sums of `overtok plan --ranks`, which serve many ranks, on one.
TEST(ForecastTest, AgreesWithThePlansSums) {
  for (const char* recipe : {"130m", "300m", "520m", "1_2b"}) {
    LoadedConfig loaded = Recipe(recipe);
    RanksOptions options;
    options.hardware = H200();
    const auto plan = PlanRanks(loaded, options);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const double counted = Forecast(loaded).seconds();
    // The plan counts 8 bytes a logit where bf16 runs move 6: 4 % of a step at 130m.
    EXPECT_TRUE(Near(plan->stages[0].step.seconds(), counted, 0.05))
        << recipe << ": " << plan->stages[0].step.seconds() << " and " << counted;
  }
}

// A step on the emulated device asks for exactly what was counted.
TEST(ForecastTest, CountsWhatADeviceIsAskedFor) {
  testing::TemporaryDirectory directory;
  const auto loaded = testing::TinyConfig(directory.path(), "run",
                                          {"train.device=emulated", "train.precision=bf16"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  BenchStepOptions options;
  options.warmup = 0;
  options.repetitions = 1;
  options.by_op = true;
  const auto measured = BenchStep(*loaded, options, testing::Alone());
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_EQ(measured->device, "emulated");
  EXPECT_GT(measured->planned_gib, 0);
  EXPECT_GT(measured->host_planned_gib, 0);
  EXPECT_GT(measured->step_ms, 0);
  EXPECT_TRUE(absl::StrContains(measured->ToJson(), "\"ops_wait\":true"));

  const auto forecast = ForecastSteps(loaded->config, options.ids, options.seed, H200());
  ASSERT_TRUE(forecast.ok()) << forecast.status().message();
  EXPECT_EQ(forecast->device_bytes / (1024.0 * 1024.0 * 1024.0), measured->planned_gib);
  struct Count {
    int64_t calls = 0;
    double flops = 0, bytes = 0;
    bool operator==(const Count&) const = default;
  };
  std::map<std::string, Count> counted, asked;
  const auto add = [](const OpTime& op, std::map<std::string, Count>* counts) {
    Count& count = (*counts)[op.name];
    count.calls += op.calls;
    count.flops += op.work.flops;
    count.bytes += op.work.all_bytes();
  };
  for (const ForecastOp& op : forecast->stages[0].ops) add(op.op, &counted);
  for (const OpTime& op : measured->ops) {
    EXPECT_GT(op.seconds, 0) << op.name;
    add(op, &asked);
  }
  EXPECT_EQ(counted.size(), asked.size());
  for (const auto& [name, count] : asked) EXPECT_TRUE(counted[name] == count) << name;
}

}  // namespace
}  // namespace overtok

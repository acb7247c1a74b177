// A run that was stopped, failed or killed and started again ends with the bits of one that was
// not: weights, optimizer state, ids, metrics and best value.
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/stored_model.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/run_directory.h"
#include "trainer/signals.h"
#include "trainer/train_loop.h"

namespace overtok {
namespace {

using testing::MakeTinyCorpus;
using testing::RunTrace;
using testing::TemporaryDirectory;
using testing::TinyConfig;
using testing::TraceOf;

// Hundreds of saves: in memory where that can be had, because fsync waits for a disk.
const bool kInMemory = IsDirectory("/dev/shm") && setenv("TMPDIR", "/dev/shm", 0) == 0;

class ResumeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    EXPECT_TRUE(kInMemory || !IsDirectory("/dev/shm"));
    OT_ASSERT_OK(MakeTinyCorpus(root()));
  }
  ~ResumeTest() override { SetFileFaultHook(nullptr); }

  const std::string& root() const { return directory_.path(); }
  std::string Run(const std::string& name) const { return directory_.File(name); }

  // `signals`: the signal raised after so many completed steps.
  absl::StatusOr<int> Train(const std::string& run, const std::vector<std::string>& overrides = {},
                            const std::map<int64_t, int>& signals = {}) {
    OT_ASSIGN_OR_RETURN(LoadedConfig loaded, TinyConfig(root(), run, overrides));
    TrainOptions options;
    options.after_step = [&](int64_t step) {
      const auto it = signals.find(step);
      if (it != signals.end()) std::raise(it->second);
    };
    return overtok::Train(std::move(loaded), options, testing::Alone());
  }
  void ExpectSame(const std::string& a, const std::string& b) {
    const absl::StatusOr<RunTrace> first = TraceOf(Run(a)), second = TraceOf(Run(b));
    OT_ASSERT_OK(first);
    OT_ASSERT_OK(second);
    EXPECT_EQ(first->state.step, second->state.step);
    EXPECT_EQ(first->state.sequences, second->state.sequences);
    EXPECT_EQ(first->state.tokens, second->state.tokens);
    EXPECT_EQ(first->state.ids_hash, second->state.ids_hash);
    EXPECT_EQ(first->state.model_hash, second->state.model_hash);
    EXPECT_EQ(first->state.optimizer_hash, second->state.optimizer_hash);
    EXPECT_EQ(first->state.best, second->state.best);
    EXPECT_EQ(first->state.evaluated_step, second->state.evaluated_step);
    EXPECT_EQ(first->metrics, second->metrics);
  }

  TemporaryDirectory directory_;
};

// cases.md 63: ten windows, batches of three, stopped at 1.2 epochs, resumed twice, three epochs.
TEST_F(ResumeTest, StoppedTwiceAcrossAnEpochBorderEqualsStraight) {
  ASSERT_EQ(Train("straight").value(), 0);
  EXPECT_EQ(Train("stopped", {}, {{4, SIGTERM}}).value(), kExitInterrupted);
  EXPECT_EQ(TraceOf(Run("stopped")).value().state.step, 4);
  EXPECT_EQ(Train("stopped", {}, {{7, SIGUSR1}}).value(), kExitInterrupted);
  EXPECT_EQ(TraceOf(Run("stopped")).value().state.step, 7);
  ASSERT_EQ(Train("stopped").value(), 0);
  ExpectSame("straight", "stopped");

  const absl::StatusOr<RunTrace> trace = TraceOf(Run("straight"));
  OT_ASSERT_OK(trace);
  EXPECT_EQ(trace->state.sequences, 30);
  // Evaluations at the start, after steps 4 and 8 and at the end; passes begin with steps 4 and 7.
  ASSERT_EQ(trace->metrics.size(), 16u);
  EXPECT_EQ(nlohmann::json::parse(trace->metrics.front()).at("kind"), "eval");
  const auto end = nlohmann::json::parse(trace->metrics.back());
  EXPECT_EQ(end.at("kind"), "eval");
  EXPECT_EQ(end.at("step"), 10);
  EXPECT_EQ(end.at("eval/held_out/subsets"), 2);
  EXPECT_EQ(end.at("throughput/total_tokens"), 480);
  EXPECT_EQ(end.at("flops/6nd_backbone"), 6.0 * 15360 * 480);
  ASSERT_TRUE(trace->state.best.has_value());
  EXPECT_EQ(end.at("eval/best_loss"), trace->state.best->value);
  const auto last = nlohmann::json::parse(trace->metrics[14]);
  EXPECT_EQ(last.at("step"), 10);
  EXPECT_EQ(last.at("train/current_epoch"), 3.0);
  EXPECT_EQ(last.at("data/distinct_samples"), 10);
  EXPECT_GE(last.at("data/max_repeats").get<int>(), 3);
  EXPECT_EQ(last.at("throughput/total_tokens"), 480);
  // Ids of different steps differ, so the rolling hash does.
  EXPECT_NE(nlohmann::json::parse(trace->metrics[1]).at("data/ids_hash"),
            nlohmann::json::parse(trace->metrics[2]).at("data/ids_hash"));
}

// Weights to begin with are read once: a run that continues from its own checkpoint neither needs
// nor opens their files.
TEST_F(ResumeTest, ContinuesWithoutTheWeightsItBeganWith) {
  const std::string weights = directory_.File("weights");
  const std::vector<std::string> overrides = {"model.vocab_size=101",
                                              "model.hidden_size=48",
                                              "model.intermediate_size=56",
                                              "model.num_hidden_layers=2",
                                              "model.num_attention_heads=4",
                                              "model.num_key_value_heads=2",
                                              "model.head_dim=8",
                                              "model.rope_theta=500000",
                                              "model.rms_norm_eps=1e-6",
                                              "model.hybrid_norm=false",
                                              "train.initial_weights=" + weights};
  OT_ASSERT_OK(CreateDirectories(weights));
  OT_ASSERT_OK(testing::Store(testing::SmallQwen3(4, 2, /*tied=*/false)).Write(weights));
  ASSERT_EQ(Train("straight", overrides).value(), 0);
  EXPECT_EQ(Train("stopped", overrides, {{4, SIGTERM}}).value(), kExitInterrupted);
  OT_ASSERT_OK(RemoveTree(weights));
  ASSERT_EQ(Train("stopped", overrides).value(), 0);
  ExpectSame("straight", "stopped");
  OT_EXPECT_ERROR(Train("another", overrides), "weights");
}

// An evaluation that is due when the signal comes is made up for by the next start, in its place.
TEST_F(ResumeTest, StoppedBeforeADueEvaluation) {
  ASSERT_EQ(Train("straight").value(), 0);
  int lines = 0;
  SetFileFaultHook([&](absl::string_view operation, absl::string_view path) {
    const bool metrics = std::string(path).find("metrics.jsonl") != std::string::npos;
    // The evaluation at the start is the first line, so that the fifth is of step 4.
    if (operation == "write" && metrics && ++lines == 5) std::raise(SIGTERM);
    return absl::OkStatus();
  });
  EXPECT_EQ(Train("stopped").value(), kExitInterrupted);
  SetFileFaultHook(nullptr);
  const RunTrace trace = TraceOf(Run("stopped")).value();
  EXPECT_EQ(trace.state.step, 4);
  EXPECT_EQ(trace.state.evaluated_step, 0);
  EXPECT_EQ(trace.metrics.size(), 5u);
  ASSERT_EQ(Train("stopped").value(), 0);
  ExpectSame("straight", "stopped");
}

TEST_F(ResumeTest, TheSameRunTwiceHasTheSameBits) {
  ASSERT_EQ(Train("a").value(), 0);
  ASSERT_EQ(Train("b").value(), 0);
  ExpectSame("a", "b");
  ASSERT_EQ(Train("c", {"train.seed=1"}).value(), 0);
  EXPECT_NE(TraceOf(Run("a")).value().state.model_hash, TraceOf(Run("c")).value().state.model_hash);
  EXPECT_EQ(TraceOf(Run("a")).value().state.ids_hash, TraceOf(Run("c")).value().state.ids_hash);
  ASSERT_EQ(Train("d", {"data.order.seed=43"}).value(), 0);
  EXPECT_NE(TraceOf(Run("a")).value().state.ids_hash, TraceOf(Run("d")).value().state.ids_hash);
}

TEST_F(ResumeTest, AFinishedRunStaysAsItIs) {
  ASSERT_EQ(Train("a").value(), 0);
  const absl::StatusOr<RunTrace> before = TraceOf(Run("a"));
  ASSERT_EQ(Train("a").value(), 0);
  const absl::StatusOr<RunTrace> after = TraceOf(Run("a"));
  OT_ASSERT_OK(before);
  OT_ASSERT_OK(after);
  EXPECT_EQ(before->metrics, after->metrics);
  EXPECT_EQ(before->state.model_hash, after->state.model_hash);
}

TEST_F(ResumeTest, ALongerHorizonGoesOn) {
  ASSERT_EQ(Train("a", {"train.steps=5"}).value(), 0);
  ASSERT_EQ(Train("a", {"train.steps=8"}).value(), 0);
  EXPECT_EQ(TraceOf(Run("a")).value().state.step, 8);
  OT_EXPECT_ERROR(Train("a", {"train.steps=5"}), "beyond the horizon of 5 steps");
}

// cases.md 57: from any write point on, nothing more reaches the disk. What is there then must
// continue to the same end.
TEST_F(ResumeTest, FailingForeverFromEveryWritePointOn) {
  const std::vector<std::string> overrides = {"checkpoint.every_steps=3", "checkpoint.keep=1",
                                              "train.steps=7"};
  ASSERT_EQ(Train("straight", overrides).value(), 0);
  int64_t points = 0;
  SetFileFaultHook([&](absl::string_view, absl::string_view) {
    ++points;
    return absl::OkStatus();
  });
  ASSERT_EQ(Train("count", overrides).value(), 0);
  ASSERT_GT(points, 100);
  // Every point would take half a minute; a stride that is coprime to the number of points of one
  // save visits each kind.
  for (int64_t fail_at = 1; fail_at < points; fail_at += 17) {
    const std::string run = absl::StrCat("run", fail_at);
    int64_t left = fail_at;
    SetFileFaultHook([&](absl::string_view, absl::string_view) -> absl::Status {
      if (--left > 0) return absl::OkStatus();
      return absl::AbortedError("this process writes no more");
    });
    EXPECT_FALSE(Train(run, overrides).ok()) << fail_at;
    SetFileFaultHook(nullptr);
    const absl::StatusOr<int> again = Train(run, overrides);
    OT_ASSERT_OK(again);
    EXPECT_EQ(*again, 0);
    ExpectSame("straight", run);
    ASSERT_FALSE(HasFailure()) << "failed at write point " << fail_at;
    OT_ASSERT_OK(RemoveTree(Run(run)));
  }
}

// cases.md 59: a full disk is an error with the numbers, and the old checkpoint loads.
TEST_F(ResumeTest, AFullDiskKeepsTheOldCheckpoint) {
  const std::vector<std::string> overrides = {"checkpoint.every_steps=3", "checkpoint.keep=1"};
  SetFileFaultHook([&](absl::string_view operation, absl::string_view path) -> absl::Status {
    if (operation == "write" && std::string(path).find("00000006") != std::string::npos) {
      return absl::ResourceExhaustedError(absl::StrCat("cannot write ", path, ": no space"));
    }
    return absl::OkStatus();
  });
  OT_EXPECT_ERROR(Train("a", overrides), "no space");
  SetFileFaultHook(nullptr);
  EXPECT_EQ(TraceOf(Run("a")).value().state.step, 3);
  ASSERT_EQ(Train("a", overrides).value(), 0);
  ASSERT_EQ(Train("straight", overrides).value(), 0);
  ExpectSame("straight", "a");
}

// cases.md 61: the rate is a function of configuration and step, whatever a checkpoint says.
TEST_F(ResumeTest, RatesFollowTheConfiguration) {
  const auto rates = [&](const std::string& run) {
    std::vector<double> values;
    const RunTrace trace = TraceOf(Run(run)).value();
    for (const std::string& line : trace.metrics) {
      const auto json = nlohmann::json::parse(line);
      if (json.at("kind") == "train") values.push_back(json.at("optim/learning_rate"));
    }
    return values;
  };
  ASSERT_EQ(Train("straight").value(), 0);
  ASSERT_EQ(Train("stopped", {}, {{5, SIGINT}}).value(), kExitInterrupted);
  ASSERT_EQ(Train("stopped").value(), 0);
  EXPECT_EQ(rates("straight"), rates("stopped"));
  ASSERT_EQ(Train("changed", {}, {{5, SIGINT}}).value(), kExitInterrupted);
  ASSERT_EQ(Train("changed", {"optimizer.lr=0.04"}).value(), 0);
  const std::vector<double> before = rates("straight"), after = rates("changed");
  ASSERT_EQ(after.size(), 10u);
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(after[i], (i < 5 ? 1 : 2) * before[i]) << i;
}

// cases.md 46: a step that is not finite ends the run; nothing of it is kept.
TEST_F(ResumeTest, NotANumberStopsTheRun) {
  const std::vector<std::string> overrides = {"checkpoint.every_steps=2"};
  ASSERT_EQ(Train("a", overrides, {{4, SIGTERM}}).value(), kExitInterrupted);
  OT_EXPECT_ERROR(Train("a", {"checkpoint.every_steps=2", "optimizer.adam_lr=1e39"}),
                  "is not finite");
  const absl::StatusOr<RunTrace> trace = TraceOf(Run("a"));
  OT_ASSERT_OK(trace);
  const auto event = nlohmann::json::parse(trace->metrics.back());
  EXPECT_EQ(event.at("kind"), "event");
  EXPECT_THAT(event.at("message").get<std::string>(), ::testing::HasSubstr("not finite"));
  // With the old rate the run goes on as if nothing had happened.
  ASSERT_EQ(Train("a", overrides).value(), 0);
  ASSERT_EQ(Train("straight", overrides).value(), 0);
  ExpectSame("straight", "a");
}

}  // namespace
}  // namespace overtok

// Runs with input tables, a second head and sampled stages: resumed runs have the bits of straight
// ones, evaluation changes none, and losses over candidates are never called what they are not.
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/run_directory.h"
#include "trainer/signals.h"
#include "trainer/train_loop.h"

namespace overtok {
namespace {

using testing::MakeTinyCorpus;
using testing::MethodOverrides;
using testing::RunTrace;
using testing::TemporaryDirectory;
using testing::TinyConfig;
using testing::TraceOf;
using Json = nlohmann::json;

class MethodsRunTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }
  std::string Run(const std::string& name) const { return directory_.File(name); }

  // The methods of MethodOverrides and `more`. `signals`: raised after so many completed steps.
  absl::StatusOr<int> Train(const std::string& run, const std::vector<std::string>& more = {},
                            const std::map<int64_t, int>& signals = {}) {
    std::vector<std::string> overrides = MethodOverrides();
    overrides.insert(overrides.end(), more.begin(), more.end());
    OT_ASSIGN_OR_RETURN(LoadedConfig loaded, TinyConfig(root(), run, overrides));
    TrainOptions options;
    options.after_step = [&](int64_t step) {
      const auto it = signals.find(step);
      if (it != signals.end()) std::raise(it->second);
    };
    return overtok::Train(std::move(loaded), options, testing::Alone());
  }
  std::vector<Json> Lines(const std::string& run, const std::string& kind) {
    std::vector<Json> lines;
    const RunTrace trace = TraceOf(Run(run)).value();
    for (const std::string& line : trace.metrics) {
      Json json = Json::parse(line);
      if (json.at("kind") == kind) lines.push_back(std::move(json));
    }
    return lines;
  }
  void ExpectSameWeights(const std::string& a, const std::string& b) {
    const absl::StatusOr<RunTrace> first = TraceOf(Run(a)), second = TraceOf(Run(b));
    OT_ASSERT_OK(first);
    OT_ASSERT_OK(second);
    EXPECT_EQ(first->state.step, second->state.step);
    EXPECT_EQ(first->state.model_hash, second->state.model_hash);
    EXPECT_EQ(first->state.optimizer_hash, second->state.optimizer_hash);
  }
  void ExpectSame(const std::string& a, const std::string& b) {
    ExpectSameWeights(a, b);
    const RunTrace first = TraceOf(Run(a)).value(), second = TraceOf(Run(b)).value();
    EXPECT_EQ(first.state.best, second.state.best);
    EXPECT_EQ(first.state.ids_hash, second.state.ids_hash);
    EXPECT_EQ(first.metrics, second.metrics);
  }

  TemporaryDirectory directory_;
};

// Three passes in ten steps, stages ending after steps 5 and 8: stopped before each of them and
// inside the gaps between two touches of a row.
TEST_F(MethodsRunTest, ResumedAcrossStagesAndPassesEqualsStraight) {
  for (const char* each_pass : {"keep", "reinitialize", "rehash"}) {
    const std::vector<std::string> more = {
        absl::StrCat("model.ngram_embedding.each_pass=", each_pass),
        "model.ngram_embedding.row_dropout=0.1", "optimizer.tables.freeze_step=9"};
    const std::string a = absl::StrCat("straight-", each_pass);
    const std::string b = absl::StrCat("stopped-", each_pass);
    const absl::StatusOr<int> straight = Train(a, more);
    OT_ASSERT_OK(straight);
    EXPECT_EQ(Train(b, more, {{4, SIGTERM}}).value(), kExitInterrupted);
    EXPECT_EQ(Train(b, more, {{7, SIGTERM}}).value(), kExitInterrupted);
    ASSERT_EQ(Train(b, more).value(), 0);
    ExpectSame(a, b);
    ASSERT_FALSE(HasFailure()) << each_pass;
  }
}

// Rows are brought up to date for an evaluation in a copy: nothing is written back.
TEST_F(MethodsRunTest, EvaluatingEveryStepChangesNoBit) {
  OT_ASSERT_OK(Train("never", {"eval.every_steps=0", "eval.at_start=false"}).status());
  OT_ASSERT_OK(Train("always", {"eval.every_steps=1", "eval.inclusion_adjusted=true"}).status());
  ExpectSameWeights("never", "always");
  EXPECT_EQ(Lines("never", "eval").size(), 1u);
  EXPECT_EQ(Lines("always", "eval").size(), 11u);
}

TEST_F(MethodsRunTest, ASampledLossIsNeverCalledTheLoss) {
  OT_ASSERT_OK(Train("run").status());
  const std::vector<Json> lines = Lines("run", "train");
  ASSERT_EQ(lines.size(), 10u);
  for (const Json& line : lines) {
    const int64_t step = line.at("step").get<int64_t>();
    const bool sampled = step <= 8;
    EXPECT_EQ(line.contains("train/loss"), !sampled) << step;
    EXPECT_EQ(line.contains("train/head2/loss"), !sampled) << step;
    EXPECT_EQ(line.contains("train/sampled_softmax_loss"), sampled) << step;
    EXPECT_EQ(line.contains("train/head2/sampled_softmax_loss"), sampled) << step;
    for (const char* head : {"main", "head2"}) {
      const std::string prefix = absl::StrCat("sampled/", head, "/");
      EXPECT_EQ(line.contains(prefix + "candidates"), sampled) << step;
      if (!sampled) continue;
      EXPECT_EQ(line.at(prefix + "candidates"), step <= 5 ? 24 : 32);
      EXPECT_EQ(line.at(prefix + "overflow_share"), 0.0);
      EXPECT_LE(line.at(prefix + "present_max"), 16);
      EXPECT_GT(line.at(prefix + "present_mean"), 1.0);
    }
    for (const char* table : {"ngram.0", "ngram.1"}) {
      const int64_t rows = line.at(absl::StrCat("tables/", table, "/rows_touched")).get<int64_t>();
      EXPECT_GE(rows, 1);
      EXPECT_LE(rows, 48);  // a row for each position at most
    }
  }
}

TEST_F(MethodsRunTest, StagesAndPassesAreMarked) {
  OT_ASSERT_OK(Train("run", {"eval.pass_offsets=[0, 1]", "eval.every_steps=0"}).status());
  std::vector<std::pair<int64_t, int64_t>> stages, passes;
  for (const Json& line : Lines("run", "event")) {
    const int64_t step = line.at("step").get<int64_t>();
    if (line.at("event") == "stage") {
      stages.emplace_back(step, line.at("candidates").get<int64_t>());
      EXPECT_EQ(line.at("full_softmax"), step == 8);
    } else {
      EXPECT_EQ(line.at("event"), "pass");
      passes.emplace_back(step, line.at("pass").get<int64_t>());
    }
    EXPECT_EQ(line.at("throughput/total_tokens"), step * 48);
  }
  EXPECT_THAT(stages, ::testing::ElementsAre(std::pair(0, 24), std::pair(5, 32), std::pair(8, 64)));
  // Ten windows by three: passes begin with windows 10 and 20.
  EXPECT_THAT(passes, ::testing::ElementsAre(std::pair(4, 1), std::pair(7, 2)));
  std::vector<int64_t> evaluated;
  for (const Json& line : Lines("run", "eval")) evaluated.push_back(line.at("step"));
  EXPECT_THAT(evaluated, ::testing::ElementsAre(0, 4, 5, 7, 8, 10));
}

// Evaluations behind a sampled stage are marked and count for no best value.
TEST_F(MethodsRunTest, SampledStagesAreLeftOutOfTheBest) {
  OT_ASSERT_OK(Train("run", {"eval.every_steps=1", "eval.inclusion_adjusted=true"}).status());
  bool would_have_been_best = false;
  double best = INFINITY;
  for (const Json& line : Lines("run", "eval")) {
    const int64_t step = line.at("step").get<int64_t>();
    const bool sampled = step >= 1 && step <= 8;
    EXPECT_EQ(line.contains("eval/sampled_stage"), sampled) << step;
    EXPECT_EQ(line.contains("eval/held_out/inclusion_adjusted/macro_loss"), sampled) << step;
    if (sampled) {
      EXPECT_EQ(line.at("eval/sampled_stage"), true);
      EXPECT_EQ(line.at("eval/stage_candidates"), step <= 5 ? 24 : 32);
      would_have_been_best |= line.at("eval/held_out/macro_loss").get<double>() < best;
    } else {
      best = std::min(best, line.at("eval/held_out/macro_loss").get<double>());
    }
    EXPECT_EQ(line.at("eval/best_loss"), best) << step;
  }
  EXPECT_TRUE(would_have_been_best);  // else this test shows nothing
  EXPECT_EQ(TraceOf(Run("run")).value().state.best->value, best);
}

TEST_F(MethodsRunTest, FocalLossHasItsOwnName) {
  OT_ASSERT_OK(Train("run", {"loss.sampled_softmax=null", "loss.focal_gamma=0.5"}).status());
  for (const Json& line : Lines("run", "train")) {
    EXPECT_FALSE(line.contains("train/loss"));
    EXPECT_TRUE(line.contains("train/focal_loss"));
    EXPECT_TRUE(line.contains("train/head2/focal_loss"));
    const double sum = line.at("train/focal_loss").get<double>() +
                       0.1 * line.at("train/head2/focal_loss").get<double>();
    EXPECT_TRUE(std::abs(line.at("train/objective").get<double>() - sum) <= 1e-12);
  }
}

TEST_F(MethodsRunTest, HashedHeadsHaveTheirOwnLosses) {
  OT_ASSERT_OK(Train("run", {"model.second_token_head=null", "model.ngram_head.rows=200",
                             "model.ngram_head.orders=[2, 3]"})
                   .status());
  for (const Json& line : Lines("run", "train")) {
    for (const char* head : {"gram2", "gram3"}) {
      EXPECT_TRUE(line.contains(absl::StrCat("train/", head, "/sampled_softmax_loss")));
      // As many candidates as a block has positions, in every step.
      EXPECT_EQ(line.at(absl::StrCat("sampled/", head, "/candidates")), 16);
      EXPECT_TRUE(line.contains(absl::StrCat("tables/", head, "/rows_touched")));
    }
  }
}

// What a table keeps and how it is updated must agree; rates and stages may change.
TEST_F(MethodsRunTest, WhatMayChangeBetweenTwoStarts) {
  ASSERT_EQ(Train("a", {}, {{3, SIGTERM}}).value(), kExitInterrupted);
  OT_EXPECT_ERROR(Train("a", {"optimizer.tables.storage=bf16"}), "optimizer.tables.storage");
  OT_EXPECT_ERROR(Train("a", {"optimizer.tables.second_moment=row"}),
                  "optimizer.tables.second_moment");
  OT_EXPECT_ERROR(Train("a", {"optimizer.tables.beta1=0"}), "optimizer.tables.beta1");
  OT_EXPECT_ERROR(Train("a", {"model.ngram_embedding.each_pass=rehash"}), "each_pass");
  OT_EXPECT_ERROR(Train("a", {"model.ngram_embedding.rows=103"}), "rows");
  OT_EXPECT_ERROR(Train("a", {"model.second_token_head.weight=0.2"}), "weight");
  EXPECT_EQ(Train("a", {"optimizer.tables.lr_scale=2", "optimizer.tables.freeze_step=6",
                        "loss.sampled_softmax.stages=[{until: 0.6, candidates: 30}]"})
                .value(),
            0);
}

}  // namespace
}  // namespace overtok

// Reading metrics.jsonl as runs leave it: killed in a line, with NaN, written twice, incomplete.
#include "trainer/report/run_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RunMetricsTest : public ::testing::Test {
 protected:
  absl::StatusOr<RunMetrics> Read(const std::string& metrics) {
    if (!WriteFileAtomically(directory_.File("metrics.jsonl"), metrics).ok()) std::abort();
    return ReadRunMetrics(directory_.path());
  }
  testing::TemporaryDirectory directory_;
};

constexpr char kTrain[] =
    R"({"step":1,"time":100.0,"kind":"train","train/loss":9.5,"throughput/total_tokens":64,"throughput/tokens_per_second":10,"parameter_count":7}
{"step":2,"time":101.0,"kind":"train","train/loss":9.0,"throughput/total_tokens":128,"throughput/tokens_per_second":30}
{"step":3,"time":103.0,"kind":"train","train/loss":8.0,"throughput/total_tokens":192,"throughput/tokens_per_second":20}
)";

TEST_F(RunMetricsTest, ReadsCurvesAndLastValues) {
  const auto run = Read(kTrain);
  OT_ASSERT_OK(run);
  ASSERT_EQ(run->train.size(), 3u);
  EXPECT_EQ(run->train[2].step, 3);
  EXPECT_EQ(run->train[2].tokens, 192);
  EXPECT_EQ(run->train[2].loss, 8.0);
  EXPECT_EQ(run->Last("parameter_count"), 7);
  EXPECT_EQ(run->Last("throughput/total_tokens"), 192);
  EXPECT_TRUE(std::isnan(run->Last("no/such")));
  EXPECT_EQ(run->tokens_per_second, 20);  // median
  EXPECT_EQ(run->seconds, 3);
  EXPECT_EQ(run->last_step, 3);
  EXPECT_THAT(run->warnings, IsEmpty());
}

TEST_F(RunMetricsTest, SampledLossesStagesAndPassesAreToldApart) {
  const auto run = Read(
      R"({"step":0,"time":1,"kind":"event","event":"stage","candidates":4096,"full_softmax":false,"throughput/total_tokens":0}
{"step":1,"time":1,"kind":"train","train/sampled_softmax_loss":5.5,"sampled/main/candidates":4096,"throughput/duration":0.5}
{"step":1,"time":1,"kind":"eval","eval/sampled_stage":true,"eval/held_out/macro_loss":6.5,"eval/held_out/inclusion_adjusted/macro_loss":6.0,"eval/held_out/inclusion_adjusted/novel/loss":6.0,"train/current_epoch":1.5}
{"step":1,"time":1,"kind":"event","event":"stage","candidates":16384,"full_softmax":true,"throughput/total_tokens":64}
{"step":1,"time":1,"kind":"event","event":"pass","pass":1,"throughput/total_tokens":64}
{"step":2,"time":1,"kind":"train","train/loss":6.4,"throughput/duration":0.75}
{"step":2,"time":1,"kind":"event","event":"error","message":"no"}
)");
  OT_ASSERT_OK(run);
  ASSERT_EQ(run->train.size(), 2u);
  EXPECT_EQ(run->train[0].kind, LossKind::kSampled);
  EXPECT_EQ(run->train[0].candidates, 4096);
  EXPECT_EQ(run->train[1].kind, LossKind::kFull);
  ASSERT_EQ(run->evals.size(), 1u);
  EXPECT_TRUE(run->evals[0].sampled_stage);
  EXPECT_EQ(run->evals[0].held_out_macro, 6.5);
  EXPECT_EQ(run->evals[0].held_out_adjusted, 6.0);
  EXPECT_EQ(run->evals[0].passes, 1.5);
  EXPECT_TRUE(run->evals[0].sets.empty());  // adjusted scores are no set's
  ASSERT_EQ(run->markers.size(), 3u);
  EXPECT_EQ(run->markers[1].number, 0);
  EXPECT_EQ(run->markers[1].tokens, 64);
  EXPECT_EQ(run->markers[2].kind, RunMarker::Kind::kPass);
  EXPECT_EQ(run->step_seconds.at(4096), 0.5);
  EXPECT_EQ(run->step_seconds.at(0), 0.75);
}

TEST_F(RunMetricsTest, EvaluationsOfOneStepMakeOnePoint) {
  const auto run = Read(
      R"({"step":0,"time":1,"kind":"eval","eval/held_out/novel/loss":9.7,"eval/held_out/novel/bpb":3.5,"eval/held_out/macro_loss":9.7,"flops/6nd_backbone":0}
{"step":0,"time":1,"kind":"eval","eval/paloma/c4_en/loss":9.8,"eval/loss":1}
{"step":5,"time":1,"kind":"eval","eval/held_out/macro_loss":5.5,"flops/6nd_backbone":1e12,"throughput/total_tokens":320}
)");
  OT_ASSERT_OK(run);
  ASSERT_EQ(run->evals.size(), 2u);
  EXPECT_EQ(run->evals[0].sets.size(), 2u);  // eval/loss belongs to no set
  EXPECT_EQ(run->evals[0].sets.at("held_out/novel").loss, 9.7);
  EXPECT_EQ(run->evals[0].sets.at("held_out/novel").bpb, 3.5);
  EXPECT_TRUE(std::isnan(run->evals[0].sets.at("paloma/c4_en").bpb));
  EXPECT_TRUE(std::isnan(run->evals[0].paloma_macro));
  EXPECT_EQ(run->evals[1].held_out_macro, 5.5);
  EXPECT_EQ(run->evals[1].flops_6nd, 1e12);
}

TEST_F(RunMetricsTest, LineCutByAKillIsLeftOutAndSaid) {
  const auto run = Read(std::string(kTrain) + R"({"step":4,"time":104.0,"kind":"tr)");
  OT_ASSERT_OK(run);
  EXPECT_EQ(run->train.size(), 3u);
  EXPECT_THAT(run->warnings, ElementsAre(HasSubstr("line 4 left out")));
}

TEST_F(RunMetricsTest, NonFiniteValuesAreNotPointsAndSaid) {
  const auto run = Read(std::string(kTrain) +
                        R"({"step":4,"time":104,"kind":"train","train/loss":"NaN"}
{"step":5,"time":104,"kind":"train","train/loss":"Infinity"}
{"step":6,"time":104,"kind":"train","train/loss":null}
)");
  OT_ASSERT_OK(run);
  EXPECT_EQ(run->train.size(), 3u);
  EXPECT_EQ(run->last_step, 6);
  EXPECT_THAT(run->warnings, ElementsAre(HasSubstr("NaN or infinite values in line 4 and 2 more")));
}

TEST_F(RunMetricsTest, OfARepeatedStepTheLastLineCounts) {
  const auto run = Read(std::string(kTrain) +
                        "{\"step\":2,\"time\":110,\"kind\":\"train\",\"train/loss\":7.0}\n");
  OT_ASSERT_OK(run);
  ASSERT_EQ(run->train.size(), 3u);
  EXPECT_EQ(run->train[1].step, 2);
  EXPECT_EQ(run->train[1].loss, 7.0);
}

TEST_F(RunMetricsTest, WrongTypesAreNotRead) {
  const auto run =
      Read(std::string(kTrain) + "[1]\n7\n{\"step\":\"x\"}\n{\"kind\":3,\"step\":9}\n");
  OT_ASSERT_OK(run);
  EXPECT_EQ(run->train.size(), 3u);
  EXPECT_THAT(run->warnings, ElementsAre(HasSubstr("line 4 and 2 more")));
}

TEST_F(RunMetricsTest, MissingAndEmptyMetricsAreNamedErrors) {
  OT_EXPECT_ERROR(ReadRunMetrics(directory_.path()), "no metrics.jsonl in this directory");
  OT_EXPECT_ERROR(ReadRunMetrics(directory_.File("nowhere")), "nowhere: no such directory");
  OT_EXPECT_ERROR(Read(""), "no training and no evaluation line yet");
  OT_EXPECT_ERROR(Read("{\"step\":0,\"kind\":\"event\"}\n"), directory_.path());
}

TEST_F(RunMetricsTest, MachineFactsComeFromTheLastStart) {
  OT_ASSERT_OK(WriteFileAtomically(
      directory_.File("manifest.json"),
      R"({"starts":[{"device":"old"},{"host":{"processor":"P"},"device":"cpu","precision":"f32","threads":2}]})"));
  const auto run = Read(kTrain);
  OT_ASSERT_OK(run);
  EXPECT_THAT(run->machine, ElementsAre("P", "cpu", "f32", "2 threads"));
  OT_ASSERT_OK(WriteFileAtomically(directory_.File("manifest.json"), "{\"starts\":"));
  EXPECT_THAT(Read(kTrain)->machine, IsEmpty());
}

TEST(RunNamesTest, LastElementsUnlessEqual) {
  EXPECT_THAT(RunNames({"runs/a/", "runs/b"}), ElementsAre("a", "b"));
  EXPECT_THAT(RunNames({"x/run", "y/run", "z"}), ElementsAre("x/run", "y/run", "z"));
  EXPECT_THAT(RunNames({"."}), ElementsAre("."));
}

}  // namespace
}  // namespace overtok

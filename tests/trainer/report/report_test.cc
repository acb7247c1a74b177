// Which numbers the report shows and over which axis; the page and its files.
#include "trainer/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/io/files.h"
#include "tests/support/temporary_directory.h"

namespace overtok {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

RunMetrics SampleRun(const std::string& name, double scale = 1) {
  RunMetrics run;
  run.name = name;
  for (int step = 1; step <= 50; ++step) {
    run.train.push_back({step, 64.0 * step, 9.0 - 0.1 * step});
  }
  for (const int step : {0, 1, 20, 50}) {
    EvalPoint point;
    point.step = step;
    point.tokens = 64.0 * step;
    point.flops_6nd = scale * 1e6 * point.tokens;
    point.held_out_macro = 9.0 - 0.08 * step;
    point.sets["held_out/novel"] = {9.0 - 0.08 * step, 3.0 - 0.01 * step};
    run.evals.push_back(point);
  }
  run.last = {{"throughput/total_tokens", 3200}, {"flops/6nd_backbone", 3.2e9}};
  run.last_step = 50;
  return run;
}

TEST(ReportPlotTest, MacroIsOver6NdAndTheStartHasNoPlaceOnALogAxis) {
  const Plot plot = MacroPlot({SampleRun("a")});
  EXPECT_TRUE(plot.log_x);
  EXPECT_THAT(plot.x_label, HasSubstr("6ND"));
  EXPECT_EQ(plot.title, "Held-out macro loss");
  ASSERT_THAT(plot.series, SizeIs(1));
  ASSERT_THAT(plot.series[0].line, SizeIs(3));
  EXPECT_EQ(plot.series[0].line[0].x, 64e6);
  EXPECT_EQ(plot.series[0].line[2].y, 5.0);
  EXPECT_EQ(plot.series[0].end_label, "5.00");
}

TEST(ReportPlotTest, LessThanADecadeIsLinearAndKeepsTheStart) {
  RunMetrics run = SampleRun("a");
  run.evals.erase(run.evals.begin() + 1);  // 20 to 50 steps
  const Plot plot = MacroPlot({run});
  EXPECT_FALSE(plot.log_x);
  EXPECT_THAT(plot.series[0].line, SizeIs(3));
}

TEST(ReportPlotTest, PalomaOnlyWhenEveryRunHasIt) {
  RunMetrics with = SampleRun("a"), without = SampleRun("b");
  for (EvalPoint& point : with.evals) point.paloma_macro = 4;
  EXPECT_EQ(MacroPlot({with}).title, "Paloma macro loss");
  EXPECT_EQ(MacroPlot({with}).series[0].line[0].y, 4);
  EXPECT_EQ(MacroPlot({with, without}).title, "Held-out macro loss");
  EXPECT_THAT(MacroPlot({with, without}).series, SizeIs(2));
  // A run without any evaluation does not decide.
  without.evals.clear();
  EXPECT_EQ(MacroPlot({with, without}).title, "Paloma macro loss");
}

TEST(ReportPlotTest, MissingCountsFallBackTogether) {
  RunMetrics counted = SampleRun("a"), uncounted = SampleRun("b");
  for (EvalPoint& point : uncounted.evals) point.flops_6nd = kMissing;
  EXPECT_EQ(MacroPlot({counted, uncounted}).x_label, "training tokens");
  for (EvalPoint& point : uncounted.evals) point.tokens = kMissing;
  EXPECT_EQ(MacroPlot({counted, uncounted}).x_label, "optimizer steps");
  uncounted.train[3].tokens = kMissing;
  EXPECT_EQ(TrainingPlot({counted}).x_label, "training tokens");
  EXPECT_EQ(TrainingPlot({counted, uncounted}).x_label, "optimizer steps");
}

TEST(ReportPlotTest, ColorsStayWithTheRun) {
  RunMetrics untrained = SampleRun("b");
  untrained.train.clear();
  const Plot plot = TrainingPlot({SampleRun("a"), untrained, SampleRun("c")});
  ASSERT_THAT(plot.series, SizeIs(2));
  EXPECT_EQ(plot.series[1].name, "c");
  EXPECT_EQ(plot.series[1].color, 2);
}

// A run with a sampled stage of 20 steps, then the full softmax.
RunMetrics SampledRun(const std::string& name) {
  RunMetrics run = SampleRun(name);
  for (int i = 0; i < 20; ++i) {
    run.train[static_cast<size_t>(i)].kind = LossKind::kSampled;
    run.train[static_cast<size_t>(i)].candidates = 4096;
  }
  run.evals[1].sampled_stage = run.evals[2].sampled_stage = true;
  run.evals[2].held_out_adjusted = 6.9;
  run.markers = {{RunMarker::Kind::kStage, 0, 0, 0, 4096},
                 {RunMarker::Kind::kStage, 20, 64.0 * 20, 64e6 * 20, 0}};
  run.step_seconds = {{4096, 0.5}, {0, 0.8}};
  return run;
}

TEST(ReportPlotTest, ASampledLossIsNeverJoinedWithTheFullOne) {
  const Plot plot = TrainingPlot({SampledRun("a")});
  ASSERT_THAT(plot.series, SizeIs(2));
  EXPECT_EQ(plot.series[0].name, "a, sampled");
  EXPECT_TRUE(plot.series[0].dashed);
  EXPECT_THAT(plot.series[0].line, SizeIs(20));
  EXPECT_EQ(plot.series[0].end_label, "");
  EXPECT_EQ(plot.series[1].name, "a");
  EXPECT_FALSE(plot.series[1].dashed);
  EXPECT_EQ(plot.series[1].line.front().x, 64.0 * 21);
  // The moving average stops at the border: the first value of a stretch is its own.
  EXPECT_EQ(plot.series[1].line.front().y, plot.series[1].faint.front().y);
  ASSERT_THAT(plot.markers, SizeIs(1));  // the start has none
  EXPECT_EQ(plot.markers[0].x, 64.0 * 20);
  EXPECT_EQ(plot.markers[0].label, "full");
}

TEST(ReportPlotTest, SampledStagesAreHollowAndTheAdjustedCurveIsItsOwn) {
  const Plot plot = MacroPlot({SampledRun("a")});
  ASSERT_THAT(plot.series, SizeIs(2));
  EXPECT_TRUE(plot.series[0].line[0].hollow);
  EXPECT_TRUE(plot.series[0].line[1].hollow);
  EXPECT_FALSE(plot.series[0].line[2].hollow);
  EXPECT_EQ(plot.series[1].name, "a, inclusion-adjusted");
  ASSERT_THAT(plot.series[1].line, SizeIs(1));
  EXPECT_EQ(plot.series[1].line[0].y, 6.9);
  const std::string svg = RenderSvg(plot, kWidePlot, "p", true);
  EXPECT_THAT(svg, HasSubstr("class=\"ot-hollow ot-s0\""));
  EXPECT_THAT(svg, HasSubstr("class=\"ot-line ot-s0 ot-dash\""));
  EXPECT_THAT(svg, HasSubstr("class=\"ot-mark ot-axis\""));
}

TEST(ReportPlotTest, MarkersOfOneRunHaveItsColor) {
  RunMetrics a = SampledRun("a"), b = SampledRun("b");
  b.markers[1].tokens = 64.0 * 30;
  const Plot apart = TrainingPlot({a, b});
  ASSERT_THAT(apart.markers, SizeIs(2));
  EXPECT_EQ(apart.markers[0].color, 0);
  EXPECT_EQ(apart.markers[1].color, 1);
  const Plot shared = TrainingPlot({a, SampledRun("c"), SampleRun("none")});
  ASSERT_THAT(shared.markers, SizeIs(1));
  EXPECT_EQ(shared.markers[0].color, -1);
}

TEST(ReportPlotTest, PassesHaveAPlotWhereDataRepeats) {
  RunMetrics run = SampleRun("a");
  EXPECT_TRUE(PassesPlot({run}).series.empty());
  for (EvalPoint& point : run.evals) point.passes = static_cast<double>(point.step) / 20;
  const Plot plot = PassesPlot({run});
  ASSERT_THAT(plot.series, SizeIs(1));
  EXPECT_THAT(plot.series[0].line, SizeIs(3));  // without the start
  EXPECT_EQ(plot.series[0].line[2].x, 2.5);
  ASSERT_THAT(plot.markers, SizeIs(2));
  EXPECT_EQ(plot.markers[1].label, "pass 3");
}

TEST(ReportPageTest, ComparesRunsAndLeavesSampledStagesOutOfTheBest) {
  RunMetrics run = SampledRun("a");
  run.evals[3].held_out_macro = 8.0;  // worse than the sampled evaluation at step 20
  run.last["memory/peak_gib"] = 1.25;
  const std::string page = RenderReport({run, SampleRun("b")});
  EXPECT_THAT(page, HasSubstr("8.0000 <span class=\"soft\">step 50</span></td><td>5.0000"));
  EXPECT_THAT(page, HasSubstr("Step time, ms, P = 4096</th><td>500.0</td><td>–</td>"));
  EXPECT_THAT(page, HasSubstr("Step time, ms, full softmax</th><td>800.0</td>"));
  EXPECT_THAT(page, HasSubstr("Peak memory, GiB</th><td>1.25</td>"));
  EXPECT_THAT(page, HasSubstr("Hollow points"));
}

TEST(ReportPageTest, ShowsNumbersEscapesNamesAndLoadsNothing) {
  RunMetrics run = SampleRun("<b>&");
  run.config = "a: <x>\n";
  run.warnings = {"line 7 left out"};
  const std::string page = RenderReport({run});
  EXPECT_THAT(page, HasSubstr("&lt;b&gt;&amp;"));
  EXPECT_THAT(page, Not(HasSubstr("<b>&<")));
  EXPECT_THAT(page, HasSubstr("a: &lt;x&gt;"));
  EXPECT_THAT(page, HasSubstr("line 7 left out"));
  EXPECT_THAT(page, HasSubstr("from 9.000 at step 0"));
  EXPECT_THAT(page, HasSubstr("5.0000"));
  EXPECT_THAT(page, HasSubstr("3.2×10⁹"));
  EXPECT_THAT(page, HasSubstr("2.500"));  // bits per byte of the last evaluation
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));
  EXPECT_THAT(page, Not(HasSubstr("href=")));
  EXPECT_THAT(page, Not(HasSubstr("nan")));
}

TEST(ReportPageTest, RunsWithoutEvaluationsOrTrainingStillMakeAPage) {
  RunMetrics only_train = SampleRun("a"), only_eval = SampleRun("b");
  only_train.evals.clear();
  only_eval.train.clear();
  only_eval.last.clear();
  EXPECT_THAT(RenderReport({only_train}), Not(HasSubstr("id=\"macro-wide-t\"")));
  EXPECT_THAT(RenderReport({only_eval}), Not(HasSubstr("id=\"training-wide-t\"")));
  EXPECT_THAT(RenderReport({only_train, only_eval}), HasSubstr("2 runs"));
}

TEST(ReportFilesTest, WritesPageAndPicturesOrNothing) {
  testing::TemporaryDirectory directory;
  OT_ASSERT_OK(CreateDirectories(directory.File("run")));
  OT_ASSERT_OK(WriteFileAtomically(
      directory.File("run/metrics.jsonl"),
      "{\"step\":1,\"time\":1,\"kind\":\"train\",\"train/loss\":9.5}\n"
      "{\"step\":2,\"time\":2,\"kind\":\"eval\",\"eval/held_out/macro_loss\":9.1}\n"));
  const std::string page = directory.File("report.html");
  OT_EXPECT_ERROR(WriteReport({directory.File("run"), directory.File("other")}, page, ""), "other");
  EXPECT_FALSE(PathExists(page));
  const auto written = WriteReport({directory.File("run")}, page, directory.File("picture"));
  OT_ASSERT_OK(written);
  EXPECT_THAT(*written, ::testing::ElementsAre(page, directory.File("picture-training.svg"),
                                               directory.File("picture-held-out.svg")));
  for (const std::string& path : *written) EXPECT_TRUE(PathExists(path)) << path;
}

}  // namespace
}  // namespace overtok

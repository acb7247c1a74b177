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

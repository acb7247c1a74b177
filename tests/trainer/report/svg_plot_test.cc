// The pictures are well-formed, escape what users name, and their helpers keep the data's shape.
#include "trainer/report/svg_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace overtok {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Plot TwoSeries() {
  Plot plot;
  plot.title = "Loss <1>";
  plot.description = "d";
  plot.x_label = "x";
  plot.y_label = "y";
  for (int i = 0; i < 2; ++i) {
    PlotSeries series;
    series.name = absl::StrCat("run \"", i, "\"");
    series.line = {{1, 5.0 - i, "a & b"}, {2, 4.0 - i, ""}};
    series.markers = true;
    series.end_label = absl::StrCat(4 - i, ".00");
    series.color = i;
    plot.series.push_back(series);
  }
  return plot;
}

int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(SvgPlotTest, NamesAreEscapedAndElementsClosed) {
  const std::string svg = RenderSvg(TwoSeries(), kWidePlot, "p", true);
  EXPECT_THAT(svg, HasSubstr("Loss &lt;1&gt;"));
  EXPECT_THAT(svg, HasSubstr("run &quot;0&quot;"));
  EXPECT_THAT(svg, HasSubstr("<title>a &amp; b</title></circle>"));
  EXPECT_THAT(svg, HasSubstr("<title>a &amp; b</title></rect>"));
  for (const char* element : {"svg", "text", "title", "desc", "style"}) {
    EXPECT_EQ(
        Count(svg, absl::StrCat("<", element, ">")) + Count(svg, absl::StrCat("<", element, " ")),
        Count(svg, absl::StrCat("</", element, ">")))
        << element;
  }
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgPlotTest, StandaloneCarriesItsStyleAndLoadsNothing) {
  const std::string svg = RenderSvg(TwoSeries(), kWidePlot, "p", true);
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg, Not(HasSubstr("href")));
  EXPECT_THAT(svg, Not(HasSubstr("url(")));
  EXPECT_THAT(RenderSvg(TwoSeries(), kWidePlot, "p", false), Not(HasSubstr("<style>")));
}

TEST(SvgPlotTest, LegendOnlyForSeveralSeries) {
  Plot plot = TwoSeries();
  EXPECT_THAT(RenderSvg(plot, kNarrowPlot, "p", false), HasSubstr(">run &quot;1&quot;</text>"));
  plot.series.pop_back();
  EXPECT_THAT(RenderSvg(plot, kNarrowPlot, "p", false),
              Not(HasSubstr(">run &quot;0&quot;</text>")));
}

TEST(SvgPlotTest, EndLabelsOfCloseLinesDoNotOverlap) {
  Plot plot = TwoSeries();
  plot.series[1].line = {{1, 5.0, ""}, {2, 4.001, ""}};
  const std::string svg = RenderSvg(plot, kWidePlot, "p", false);
  std::vector<double> heights;
  for (const std::string label : {">4.00</text>", ">3.00</text>"}) {
    const size_t end = svg.find(label);
    ASSERT_NE(end, std::string::npos) << label;
    const size_t at = svg.rfind(" y=\"", end) + 4;
    heights.push_back(std::stod(svg.substr(at, svg.find('"', at) - at)));
  }
  EXPECT_TRUE(std::abs(heights[0] - heights[1]) >= 15);  // text is 12 units high
}

TEST(SvgPlotTest, SinglePointIsMarked) {
  Plot plot = TwoSeries();
  plot.series.pop_back();
  plot.series[0].markers = false;
  plot.series[0].line.pop_back();
  EXPECT_THAT(RenderSvg(plot, kWidePlot, "p", false), HasSubstr("<circle"));
}

TEST(SvgPlotTest, SmoothKeepsStraightStartsAndConstantLines) {
  const std::vector<double> ramp = {10, 9, 8, 7, 6, 5, 4, 3};
  const std::vector<double> smooth = Smooth(ramp, 5);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(smooth[i], ramp[i]) << i;  // whole windows, and the start
  EXPECT_EQ(smooth[7], 4);  // the mean of 5, 4, 3: the last value alone is noise
  EXPECT_THAT(Smooth({1, 2, 3}, 1), ElementsAre(1, 2, 3));
  EXPECT_TRUE(Smooth({}, 5).empty());
}

TEST(SvgPlotTest, ThinKeepsExtremesAndOrder) {
  std::vector<PlotPoint> points;
  points.reserve(10000);
  for (int i = 0; i < 10000; ++i)
    points.push_back({static_cast<double>(i), std::sin(i * 0.01), ""});
  points[5003].y = 50;
  points[7001].y = -50;
  const std::vector<PlotPoint> thin = Thin(points, 200);
  EXPECT_LE(thin.size(), 200u);
  EXPECT_GE(thin.size(), 100u);
  double low = 0, high = 0;
  for (size_t i = 0; i < thin.size(); ++i) {
    EXPECT_TRUE(i == 0 || thin[i - 1].x < thin[i].x);
    low = std::min(low, thin[i].y);
    high = std::max(high, thin[i].y);
  }
  EXPECT_EQ(low, -50);
  EXPECT_EQ(high, 50);
  EXPECT_EQ(Thin(thin, 1000).size(), thin.size());
}

}  // namespace
}  // namespace overtok

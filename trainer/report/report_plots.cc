// The two pictures of a report: which numbers of the runs become points, and over which axis.
#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/report/axis.h"
#include "trainer/report/report.h"

namespace overtok {
namespace {

constexpr int kThinned = 1000;  // points of a drawn line; more than a screen has columns

template <class Point>
bool EveryPointHas(const std::vector<RunMetrics>& runs, std::vector<Point> RunMetrics::*points,
                   const std::function<double(const Point&)>& value) {
  for (const RunMetrics& run : runs) {
    for (const Point& point : run.*points) {
      if (!std::isfinite(value(point))) return false;
    }
  }
  return true;
}

std::string RangeText(const PlotSeries& series) {
  return absl::StrFormat("%s goes from %.3f to %.3f.", series.name, series.line.front().y,
                         series.line.back().y);
}

void Describe(Plot& plot, absl::string_view start) {
  plot.description = std::string(start);
  for (const PlotSeries& series : plot.series) {
    absl::StrAppend(&plot.description, " ", RangeText(series));
  }
}

}  // namespace

Plot TrainingPlot(const std::vector<RunMetrics>& runs) {
  const bool by_tokens = EveryPointHas<TrainPoint>(
      runs, &RunMetrics::train, [](const TrainPoint& point) { return point.tokens; });
  Plot plot;
  plot.title = "Training loss";
  plot.x_label = by_tokens ? "training tokens" : "optimizer steps";
  plot.y_label = "nats per token";
  plot.x_from_zero = true;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].train.empty()) continue;
    PlotSeries series;
    series.name = runs[i].name;
    series.color = static_cast<int>(i);
    std::vector<double> losses;
    for (const TrainPoint& point : runs[i].train) {
      const double x = by_tokens ? point.tokens : static_cast<double>(point.step);
      series.faint.push_back({x, point.loss, ""});
      losses.push_back(point.loss);
    }
    const int window = std::max(1, static_cast<int>(losses.size() / 25));
    const std::vector<double> smooth = Smooth(losses, window);
    for (size_t k = 0; k < smooth.size(); ++k) {
      series.line.push_back({series.faint[k].x, smooth[k], ""});
    }
    series.end_label = absl::StrFormat("%.2f", smooth.back());
    series.faint = Thin(series.faint, kThinned);
    series.line = Thin(series.line, kThinned);
    plot.series.push_back(std::move(series));
  }
  Describe(plot, absl::StrCat("Training loss in nats per token over ", plot.x_label, "."));
  return plot;
}

MacroKind ChooseMacro(const std::vector<RunMetrics>& runs) {
  bool any = false, all = true;
  for (const RunMetrics& run : runs) {
    if (run.evals.empty()) continue;
    const bool has = std::any_of(run.evals.begin(), run.evals.end(), [](const EvalPoint& point) {
      return std::isfinite(point.paloma_macro);
    });
    any = any || has;
    all = all && has;
  }
  return any && all ? MacroKind::kPaloma : MacroKind::kHeldOut;
}

double MacroOf(const EvalPoint& point, MacroKind kind) {
  return kind == MacroKind::kPaloma ? point.paloma_macro : point.held_out_macro;
}

Plot MacroPlot(const std::vector<RunMetrics>& runs) {
  const MacroKind kind = ChooseMacro(runs);
  const auto with_macro = [kind](double value, const EvalPoint& point) {
    return std::isfinite(MacroOf(point, kind)) ? value : 0.0;  // other points are not drawn
  };
  std::function<double(const EvalPoint&)> x = [](const EvalPoint& point) {
    return point.flops_6nd;
  };
  Plot plot;
  plot.x_label = "6ND, training FLOPs of the backbone";
  const char* unit = "6ND";
  const auto everywhere = [&] {
    return EveryPointHas<EvalPoint>(runs, &RunMetrics::evals, [&](const EvalPoint& point) {
      return with_macro(x(point), point);
    });
  };
  if (!everywhere()) {
    x = [](const EvalPoint& point) { return point.tokens; };
    plot.x_label = "training tokens";
    unit = "tokens";
  }
  if (!everywhere()) {
    x = [](const EvalPoint& point) { return static_cast<double>(point.step); };
    plot.x_label = "optimizer steps";
    unit = "steps";
  }
  plot.title = kind == MacroKind::kPaloma ? "Paloma macro loss" : "Held-out macro loss";
  plot.y_label = "nats per token";
  double low = INFINITY, high = 0;
  for (const RunMetrics& run : runs) {
    for (const EvalPoint& point : run.evals) {
      const double value = x(point);
      if (!std::isfinite(MacroOf(point, kind)) || !(value > 0)) continue;
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  plot.log_x = high > 10 * low;
  plot.scientific_x = unit[0] == '6';
  for (size_t i = 0; i < runs.size(); ++i) {
    PlotSeries series;
    series.name = runs[i].name;
    series.color = static_cast<int>(i);
    series.markers = true;
    for (const EvalPoint& point : runs[i].evals) {
      const double y = MacroOf(point, kind);
      if (!std::isfinite(y) || (plot.log_x && !(x(point) > 0))) continue;
      const std::string at =
          unit[0] == '6' ? ScientificNumber(x(point), 3) : CompactNumber(x(point));
      series.line.push_back(
          {x(point), y,
           absl::StrFormat("%s, step %d: %.4f at %s %s", runs[i].name, point.step, y, unit, at)});
    }
    if (series.line.empty()) continue;
    series.end_label = absl::StrFormat("%.2f", series.line.back().y);
    plot.series.push_back(std::move(series));
  }
  Describe(plot, absl::StrCat(plot.title, " in nats per token over ", plot.x_label,
                              plot.log_x ? ", logarithmic." : "."));
  return plot;
}

}  // namespace overtok

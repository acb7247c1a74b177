// The pictures of a report: which numbers of the runs become points, and over which axis.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

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

const char* KindName(LossKind kind) {
  return kind == LossKind::kSampled ? ", sampled" : kind == LossKind::kFocal ? ", focal" : "";
}

// The markers of all runs over `x`. Those that every run with the same sort of markers shares have
// no color.
std::vector<PlotMarker> MarkersOf(const std::vector<RunMetrics>& runs,
                                  const std::function<double(const RunMarker&)>& x) {
  struct Place {
    PlotMarker marker;
    size_t runs = 0;
  };
  std::map<std::pair<double, std::string>, Place> places;
  size_t with_stages = 0, with_passes = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    bool stages = false, passes = false;
    for (const RunMarker& marker : runs[i].markers) {
      const bool stage = marker.kind == RunMarker::Kind::kStage;
      (stage ? stages : passes) = true;
      const double at = x(marker);
      if (!std::isfinite(at) || !(at > 0)) continue;  // the start needs no mark
      PlotMarker mark;
      mark.x = at;
      mark.dotted = !stage;
      mark.color = static_cast<int>(i);
      mark.label = !stage              ? absl::StrCat("pass ", marker.number + 1)
                   : marker.number > 0 ? "P " + CompactNumber(static_cast<double>(marker.number))
                                       : "full";
      Place& place = places[{at, mark.label}];
      if (place.runs == 0) place.marker = mark;
      ++place.runs;
    }
    with_stages += stages ? 1 : 0;
    with_passes += passes ? 1 : 0;
  }
  std::vector<PlotMarker> markers;
  for (auto& [at, place] : places) {
    if (place.runs == (place.marker.dotted ? with_passes : with_stages)) place.marker.color = -1;
    markers.push_back(std::move(place.marker));
  }
  return markers;
}

double AdjustedOf(const EvalPoint& point, MacroKind kind) {
  return kind == MacroKind::kPaloma ? point.paloma_adjusted : point.held_out_adjusted;
}

// One run's macro losses over `x`, and in a second series the adjusted ones where there are any.
// Points without a place on the axis (not finite, or not positive where it is logarithmic) are left
// out.
void AddMacroSeries(const RunMetrics& run, int color, MacroKind kind, bool log_x,
                    const std::function<double(const EvalPoint&)>& x,
                    const std::function<std::string(double)>& at, Plot* plot) {
  for (const bool adjusted : {false, true}) {
    PlotSeries series;
    series.name = adjusted ? run.name + ", inclusion-adjusted" : run.name;
    series.color = color;
    series.markers = !adjusted;
    series.dashed = adjusted;
    for (const EvalPoint& point : run.evals) {
      const double y = adjusted ? AdjustedOf(point, kind) : MacroOf(point, kind), place = x(point);
      if (!std::isfinite(y) || !std::isfinite(place) || (log_x && !(place > 0))) continue;
      const bool hollow = point.sampled_stage && !adjusted;
      series.line.push_back({place, y,
                             absl::StrFormat("%s, step %d%s: %.4f at %s", series.name, point.step,
                                             hollow ? ", in a sampled stage" : "", y, at(place)),
                             hollow});
    }
    if (series.line.empty()) continue;
    if (!adjusted) series.end_label = absl::StrFormat("%.2f", series.line.back().y);
    plot->series.push_back(std::move(series));
  }
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
  const auto place = [&](int64_t step, double tokens) {
    return by_tokens ? tokens : static_cast<double>(step);
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    // A series for each stretch of one quantity: at a change of stage the sampled loss jumps, and
    // an average over the border would mean nothing.
    const std::vector<TrainPoint>& points = runs[i].train;
    std::set<std::string> named;
    for (size_t begin = 0; begin < points.size();) {
      size_t end = begin + 1;
      while (end < points.size() && points[end].kind == points[begin].kind &&
             points[end].candidates == points[begin].candidates) {
        ++end;
      }
      PlotSeries series;
      series.name = runs[i].name + KindName(points[begin].kind);
      series.color = static_cast<int>(i);
      series.dashed = points[begin].kind != LossKind::kFull;
      series.in_legend = named.insert(series.name).second;
      std::vector<double> losses;
      for (size_t k = begin; k < end; ++k) {
        series.faint.push_back({place(points[k].step, points[k].tokens), points[k].loss, ""});
        losses.push_back(points[k].loss);
      }
      // As wide as for the whole run, so that all stretches are equally smooth.
      const int window = std::max(1, static_cast<int>(points.size() / 25));
      const std::vector<double> smooth = Smooth(losses, window);
      for (size_t k = 0; k < smooth.size(); ++k) {
        series.line.push_back({series.faint[k].x, smooth[k], ""});
      }
      if (end == points.size()) series.end_label = absl::StrFormat("%.2f", smooth.back());
      series.faint = Thin(series.faint, kThinned);
      series.line = Thin(series.line, kThinned);
      plot.series.push_back(std::move(series));
      begin = end;
    }
  }
  plot.markers =
      MarkersOf(runs, [&](const RunMarker& marker) { return place(marker.step, marker.tokens); });
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
    AddMacroSeries(
        runs[i], static_cast<int>(i), kind, plot.log_x, x,
        [&](double at) {
          const std::string number = unit[0] == '6' ? ScientificNumber(at, 3) : CompactNumber(at);
          return absl::StrCat(unit, " ", number);
        },
        &plot);
  }
  plot.markers = MarkersOf(runs, [&](const RunMarker& marker) {
    return unit[0] == '6'   ? marker.flops_6nd
           : unit[0] == 't' ? marker.tokens
                            : static_cast<double>(marker.step);
  });
  Describe(plot, absl::StrCat(plot.title, " in nats per token over ", plot.x_label,
                              plot.log_x ? ", logarithmic." : "."));
  return plot;
}

Plot PassesPlot(const std::vector<RunMetrics>& runs) {
  const MacroKind kind = ChooseMacro(runs);
  Plot plot;
  plot.title =
      std::string(kind == MacroKind::kPaloma ? "Paloma" : "Held-out") + " macro loss over passes";
  plot.x_label = "passes over the data";
  plot.y_label = "nats per token";
  plot.x_from_zero = true;
  double most = 0;
  for (const RunMetrics& run : runs) {
    for (const EvalPoint& point : run.evals) {
      if (std::isfinite(MacroOf(point, kind)) && std::isfinite(point.passes)) {
        most = std::max(most, point.passes);
      }
    }
  }
  if (!(most > 1)) return plot;
  for (size_t i = 0; i < runs.size(); ++i) {
    // The start is far above the rest and would flatten what the borders do.
    RunMetrics run = runs[i];
    std::erase_if(run.evals, [](const EvalPoint& point) { return point.step == 0; });
    AddMacroSeries(
        run, static_cast<int>(i), kind, false, [](const EvalPoint& point) { return point.passes; },
        [](double at) { return absl::StrFormat("%.2f passes", at); }, &plot);
  }
  for (int pass = 1; pass < most; ++pass) {
    plot.markers.push_back({static_cast<double>(pass), absl::StrCat("pass ", pass + 1), true, -1});
  }
  Describe(plot, absl::StrCat(plot.title, " in nats per token."));
  return plot;
}

}  // namespace overtok

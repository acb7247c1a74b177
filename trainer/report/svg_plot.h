// A line plot as SVG text: axes, grid, faint raw values behind a smooth line, marked points, direct
// labels at the line ends, a legend when there are several series. No scripts, no outside
// resources; colours come from classes, so that the same picture follows a light or a dark page.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"

namespace overtok {

struct PlotPoint {
  double x, y;          // finite; x > 0 on a logarithmic axis
  std::string hint;     // shown by a viewer when the point is pointed at; empty: none
  bool hollow = false;  // a marker without filling, and a dashed line to both sides
};

struct PlotSeries {
  std::string name;
  std::vector<PlotPoint> faint;  // raw values behind the line; may be empty
  std::vector<PlotPoint> line;   // ascending x
  bool markers = false;
  std::string end_label;  // beside the last point of the line
  int color = 0;          // index into the palette; the same run has the same one in every plot
  bool dashed = false;    // the whole line, and thinner: another quantity than the solid ones
  bool in_legend = true;  // false: a further piece of a line that the legend has already
};

// A place on the x axis: a thin vertical line through the plot, with a word at its top.
struct PlotMarker {
  double x;
  std::string label;
  bool dotted = false;  // tells two sorts of places apart
  int color = -1;       // of a run, where not all runs share the place; -1: none
};

struct Plot {
  std::string title, description;  // description: for readers who cannot see the picture
  std::string x_label, y_label;
  bool log_x = false;
  bool x_from_zero = false;
  bool scientific_x = false;        // 2×10¹² rather than 2T
  std::vector<PlotSeries> series;   // at least one point in all
  std::vector<PlotMarker> markers;  // those outside the axis are not drawn
};

struct PlotSize {
  int width, height;  // units of the view box; text is 12 to 13 units high
};
inline constexpr PlotSize kWidePlot{760, 400};
inline constexpr PlotSize kNarrowPlot{360, 300};  // telephones

inline constexpr int kPlotColors = 8;

// Style sheet of the classes that the pictures use (light, dark and print).
std::string PlotStyle();

// `id` must be unique in the page. `standalone`: a file of its own, with style sheet and
// background; otherwise for a page that includes PlotStyle().
std::string RenderSvg(const Plot& plot, PlotSize size, absl::string_view id, bool standalone);

// The sample of a series' line and marker for a legend outside the picture.
std::string LegendSample(int color);

// Centred moving average over `window` points. At the start the window shrinks evenly, so that the
// steep beginning of a loss curve stays where it is; at the end only its far side does, so that the
// last values are means too.
std::vector<double> Smooth(const std::vector<double>& values, int window);

// At most about `limit` of the points: the lowest and the highest of each of limit/2 equal runs, in
// order. Fewer points come back as they are.
std::vector<PlotPoint> Thin(const std::vector<PlotPoint>& points, int limit);

// & < > " ' as entities, for text and attributes of HTML and SVG.
std::string EscapeMarkup(absl::string_view text);

}  // namespace overtok

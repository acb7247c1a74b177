#include "trainer/report/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "core/check.h"
#include "trainer/report/axis.h"

namespace overtok {
namespace {

// Told apart by lightness as well as hue, and at 4.5:1 or more against their background.
constexpr const char* kLight[kPlotColors] = {"#0b62a4", "#b3470a", "#0a7353", "#a03a78",
                                             "#5b4bb5", "#7a5c00", "#007080", "#4d4d4d"};
constexpr const char* kDark[kPlotColors] = {"#74b9f5", "#ff9d63", "#52d1a8", "#f391cb",
                                            "#b8acff", "#e2c052", "#58d4e4", "#c9c9c9"};

// Rough width of a text in units; the exact one depends on the reader's fonts.
double TextWidth(absl::string_view text) {
  int64_t characters = 0;
  for (const char c : text) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return 7.0 * static_cast<double>(characters);
}

std::string Coordinate(double value) { return absl::StrFormat("%.1f", value); }

// Marker of a color around (x, y): circle, square, triangle, diamond in turn.
std::string Marker(int color, double x, double y, double r) {
  switch (color % 4) {
    case 0:
      return absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"", x, y, r);
    case 1:
      return absl::StrFormat("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"",
                             x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
    case 2:
      return absl::StrFormat("<path d=\"M%.1f %.1fl%.1f %.1fh%.1fz\"", x, y - 1.2 * r, 1.15 * r,
                             2.1 * r, -2.3 * r);
    default:
      return absl::StrFormat("<path d=\"M%.1f %.1fl%.1f %.1fl%.1f %.1fl%.1f %.1fz\"", x,
                             y - 1.3 * r, 1.3 * r, 1.3 * r, -1.3 * r, 1.3 * r, -1.3 * r, -1.3 * r);
  }
}

struct LegendItem {
  double x;  // < 0: has none
  int row;
};

// Places of the legend's items in rows of `width`.
std::vector<LegendItem> LayOutLegend(const Plot& plot, double width) {
  std::vector<LegendItem> items;
  double x = 0;
  int row = 0;
  for (const PlotSeries& series : plot.series) {
    if (!series.in_legend) {
      items.push_back({-1, row});
      continue;
    }
    const double needed = 40 + TextWidth(series.name);
    if (x > 0 && x + needed > width) {
      x = 0;
      ++row;
    }
    items.push_back({x, row});
    x += needed;
  }
  return items;
}

class Renderer {
 public:
  Renderer(const Plot& plot, PlotSize size) : plot_(plot), size_(size) {
    double low_x = std::numeric_limits<double>::infinity(), high_x = -low_x;
    double low_y = low_x, high_y = -low_x, label_width = 0;
    for (const PlotSeries& series : plot.series) {
      for (const auto* points : {&series.faint, &series.line}) {
        for (const PlotPoint& point : *points) {
          low_x = std::min(low_x, point.x), high_x = std::max(high_x, point.x);
          low_y = std::min(low_y, point.y), high_y = std::max(high_y, point.y);
        }
      }
      label_width = std::max(label_width, TextWidth(series.end_label));
    }
    OT_CHECK(low_x <= high_x) << "a plot without points: " << plot.title;
    if (plot.series.size() > 1) legend_ = LayOutLegend(plot, size.width - 24);
    left_ = 50;
    right_ = size.width - std::max(16.0, label_width + 14);
    top_ = 32 + (legend_.empty() ? 0 : 20.0 * (legend_.back().row + 1));
    bottom_ = size.height - 46;
    const int x_ticks = std::max(3, static_cast<int>((right_ - left_) / 80));
    x_ = plot.log_x ? LogAxis(low_x, high_x, x_ticks)
                    : LinearAxis(low_x, high_x, x_ticks, plot.x_from_zero, plot.scientific_x);
    y_ = LinearAxis(low_y, high_y, std::max(3, static_cast<int>((bottom_ - top_) / 45)));
  }

  std::string Render(absl::string_view id, bool standalone) {
    absl::StrAppend(&out_, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", size_.width,
                    " ", size_.height, "\"");
    if (standalone) {
      absl::StrAppend(&out_, " width=\"", size_.width, "\" height=\"", size_.height, "\"");
    }
    absl::StrAppend(&out_, " class=\"ot-plot\" role=\"img\" aria-labelledby=\"", id, "-t ", id,
                    "-d\">\n<title id=\"", id, "-t\">", EscapeMarkup(plot_.title),
                    "</title>\n<desc id=\"", id, "-d\">", EscapeMarkup(plot_.description),
                    "</desc>\n");
    if (standalone) {
      absl::StrAppend(&out_, "<style>", PlotStyle(),
                      "</style>\n<rect class=\"ot-paper\" width=\"100%\" height=\"100%\"/>\n");
    }
    Text(12, 20, "ot-title", "start", plot_.title);
    Legend();
    Axes();
    Markers();
    for (const PlotSeries& series : plot_.series) Series(series);
    EndLabels();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  double X(double value) const { return left_ + x_.Fraction(value) * (right_ - left_); }
  double Y(double value) const { return bottom_ - y_.Fraction(value) * (bottom_ - top_); }

  void Text(double x, double y, absl::string_view classes, absl::string_view anchor,
            absl::string_view text) {
    absl::StrAppend(&out_, "<text x=\"", Coordinate(x), "\" y=\"", Coordinate(y), "\" class=\"",
                    classes, "\" text-anchor=\"", anchor, "\">", EscapeMarkup(text), "</text>\n");
  }

  void Legend() {
    for (size_t i = 0; i < legend_.size(); ++i) {
      if (legend_[i].x < 0) continue;
      const double x = 12 + legend_[i].x, y = 36 + 20.0 * legend_[i].row;
      const int color = plot_.series[i].color % kPlotColors;
      const bool dashed = plot_.series[i].dashed;
      absl::StrAppend(&out_, "<path class=\"", LineClasses(color, dashed), "\" d=\"M",
                      Coordinate(x), " ", Coordinate(y), "h22\"/>");
      if (!dashed) {
        absl::StrAppend(&out_, Marker(color, x + 11, y, 4), " class=\"ot-dot ot-f", color, "\"/>");
      }
      out_ += "\n";
      Text(x + 27, y + 4, "ot-text", "start", plot_.series[i].name);
    }
  }

  void Axes() {
    out_ += "<path class=\"ot-grid\" d=\"";
    for (const Tick& tick : y_.ticks) {
      absl::StrAppend(&out_, "M", Coordinate(left_), " ", Coordinate(Y(tick.value)), "H",
                      Coordinate(right_));
    }
    for (const Tick& tick : x_.ticks) {
      if (tick.label.empty()) continue;
      absl::StrAppend(&out_, "M", Coordinate(X(tick.value)), " ", Coordinate(top_), "V",
                      Coordinate(bottom_));
    }
    absl::StrAppend(&out_, "\"/>\n<path class=\"ot-axis\" d=\"M", Coordinate(left_), " ",
                    Coordinate(bottom_), "H", Coordinate(right_));
    for (const Tick& tick : x_.ticks) {
      absl::StrAppend(&out_, "M", Coordinate(X(tick.value)), " ", Coordinate(bottom_), "v",
                      tick.label.empty() ? 3 : 5);
    }
    out_ += "\"/>\n";
    for (const Tick& tick : y_.ticks) {
      Text(left_ - 7, Y(tick.value) + 4, "ot-text", "end", tick.label);
    }
    for (const Tick& tick : x_.ticks) {
      if (!tick.label.empty()) Text(X(tick.value), bottom_ + 18, "ot-text", "middle", tick.label);
    }
    Text((left_ + right_) / 2, bottom_ + 38, "ot-text ot-soft", "middle", plot_.x_label);
    absl::StrAppend(&out_, "<text transform=\"translate(14 ", Coordinate((top_ + bottom_) / 2),
                    ") rotate(-90)\" class=\"ot-text ot-soft\" text-anchor=\"middle\">",
                    EscapeMarkup(plot_.y_label), "</text>\n");
  }

  static std::string LineClasses(int color, bool dashed) {
    return absl::StrCat("ot-line ot-s", color, dashed ? " ot-dash" : "");
  }

  // Labels stand side by side where they would cover one another, and are left out where there is
  // no room for them; the lines stay.
  void Markers() {
    double free_from = 0;
    for (const PlotMarker& marker : plot_.markers) {
      if (!(marker.x >= x_.low && marker.x <= x_.high)) continue;
      const double x = X(marker.x);
      const std::string color =
          marker.color < 0 ? "ot-axis" : absl::StrCat("ot-s", marker.color % kPlotColors);
      absl::StrAppend(&out_, "<path class=\"ot-mark ", marker.dotted ? "ot-dots " : "", color,
                      "\" d=\"M", Coordinate(x), " ", Coordinate(top_), "V", Coordinate(bottom_),
                      "\"><title>", EscapeMarkup(marker.label), "</title></path>\n");
      const double width = TextWidth(marker.label);
      if (x + 3 < free_from || x + 3 + width > right_ + 10) continue;
      Text(x + 3, top_ + 10, "ot-text ot-soft ot-small", "start", marker.label);
      free_from = x + 3 + width;
    }
  }

  void Path(const std::vector<PlotPoint>& points, absl::string_view classes) {
    absl::StrAppend(&out_, "<path class=\"", classes, "\" d=\"");
    const char* command = "M";
    for (const PlotPoint& point : points) {
      absl::StrAppend(&out_, command, Coordinate(X(point.x)), " ", Coordinate(Y(point.y)));
      command = "L";
    }
    out_ += "\"/>\n";
  }

  void Series(const PlotSeries& series) {
    const int color = series.color % kPlotColors;
    if (series.faint.size() > 1) Path(series.faint, absl::StrCat("ot-faint ot-s", color));
    // Pieces of one kind: a segment is dashed where one of its ends is hollow.
    for (size_t begin = 0; begin + 1 < series.line.size();) {
      const auto dashed = [&](size_t i) {
        return series.dashed || series.line[i].hollow || series.line[i + 1].hollow;
      };
      size_t end = begin + 1;
      while (end + 1 < series.line.size() && dashed(end) == dashed(begin)) ++end;
      Path({series.line.begin() + static_cast<int64_t>(begin),
            series.line.begin() + static_cast<int64_t>(end) + 1},
           LineClasses(color, dashed(begin)));
      begin = end;
    }
    // A single point has no line to be seen by.
    if (!series.markers && series.line.size() > 1) return;
    for (const PlotPoint& point : series.line) {
      absl::StrAppend(&out_, Marker(color, X(point.x), Y(point.y), 4), " class=\"",
                      point.hollow ? "ot-hollow ot-s" : "ot-dot ot-f", color, "\"");
      if (point.hint.empty()) {
        out_ += "/>\n";
      } else {
        absl::StrAppend(&out_, "><title>", EscapeMarkup(point.hint), "</title>",
                        color % 4 == 0   ? "</circle>"
                        : color % 4 == 1 ? "</rect>"
                                         : "</path>",
                        "\n");
      }
    }
  }

  // Labels beside the line ends, pushed apart where the ends are close.
  void EndLabels() {
    constexpr double kGap = 15;
    std::vector<std::pair<double, const PlotSeries*>> labels;
    for (const PlotSeries& series : plot_.series) {
      if (!series.end_label.empty() && !series.line.empty()) {
        labels.emplace_back(Y(series.line.back().y), &series);
      }
    }
    std::stable_sort(labels.begin(), labels.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (size_t i = 1; i < labels.size(); ++i) {
      labels[i].first = std::max(labels[i].first, labels[i - 1].first + kGap);
    }
    double limit = bottom_;
    for (size_t i = labels.size(); i-- > 0; limit -= kGap) {
      labels[i].first = std::min(labels[i].first, limit);
    }
    for (const auto& [y, series] : labels) {
      // Beside the plot rather than the point: lines of other series may go on to the right.
      Text(std::max(X(series->line.back().x), right_ - 12) + 9, y + 4,
           absl::StrCat("ot-text ot-end ot-f", series->color % kPlotColors), "start",
           series->end_label);
    }
  }

  const Plot& plot_;
  PlotSize size_;
  std::vector<LegendItem> legend_;
  double left_, right_, top_, bottom_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::string PlotStyle() {
  std::string light, dark;
  for (int i = 0; i < kPlotColors; ++i) {
    absl::StrAppend(&light, ".ot-s", i, "{stroke:", kLight[i], "}.ot-f", i, "{fill:", kLight[i],
                    "}");
    absl::StrAppend(&dark, ".ot-s", i, "{stroke:", kDark[i], "}.ot-f", i, "{fill:", kDark[i], "}");
  }
  return absl::StrCat(
      ".ot-plot{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
      ".ot-paper{fill:#fff}.ot-title{font-size:15px;font-weight:600;fill:#1a1a1a}"
      ".ot-text{font-size:12px;fill:#333}.ot-soft{fill:#595959}.ot-end{font-weight:600}"
      ".ot-grid{stroke:#e4e4e4;fill:none}.ot-axis{stroke:#767676;fill:none}"
      ".ot-line{fill:none;stroke-width:2.2;stroke-linejoin:round;stroke-linecap:round}"
      ".ot-faint{fill:none;stroke-width:1;stroke-opacity:.28;stroke-linejoin:round}"
      ".ot-dash{stroke-width:1.5;stroke-dasharray:5 4;stroke-linecap:butt}"
      ".ot-mark{fill:none;stroke-width:1;stroke-opacity:.6}.ot-dots{stroke-dasharray:1.5 3}"
      ".ot-small{font-size:11px}"
      ".ot-hollow{fill:#fff;stroke-width:1.6}.ot-dot{stroke:#fff;stroke-width:1.2}",
      light,
      "@media screen and (prefers-color-scheme:dark){.ot-paper{fill:#14171a}"
      ".ot-title{fill:#f0f0f0}.ot-text{fill:#d6d6d6}.ot-soft{fill:#a8a8a8}"
      ".ot-grid{stroke:#30353a}.ot-axis{stroke:#8a8a8a}.ot-dot{stroke:#14171a}"
      ".ot-hollow{fill:#14171a}",
      dark, "}");
}

std::string RenderSvg(const Plot& plot, PlotSize size, absl::string_view id, bool standalone) {
  return Renderer(plot, size).Render(id, standalone);
}

std::string LegendSample(int color) {
  color %= kPlotColors;
  return absl::StrCat(
      "<svg class=\"ot-sample\" viewBox=\"0 0 24 12\" width=\"24\" height=\"12\" "
      "aria-hidden=\"true\"><path class=\"ot-line ot-s",
      color, "\" d=\"M1 6h22\"/>", Marker(color, 12, 6, 4), " class=\"ot-dot ot-f", color,
      "\"/></svg>");
}

std::vector<double> Smooth(const std::vector<double>& values, int window) {
  const int64_t n = static_cast<int64_t>(values.size());
  std::vector<double> sums(values.size() + 1, 0), smooth(values.size());
  for (int64_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + values[i];
  for (int64_t i = 0; i < n; ++i) {
    const int64_t before = std::min(int64_t{window} / 2, i);
    // As many after as before at the start, where losses fall fast; what there is at the end.
    const int64_t after = std::min(before, n - 1 - i);
    smooth[i] = (sums[i + after + 1] - sums[i - before]) / static_cast<double>(before + after + 1);
  }
  return smooth;
}

std::vector<PlotPoint> Thin(const std::vector<PlotPoint>& points, int limit) {
  const size_t n = points.size();
  if (n <= static_cast<size_t>(limit)) return points;
  const size_t runs = static_cast<size_t>(limit) / 2;
  const auto lower = [](const PlotPoint& a, const PlotPoint& b) { return a.y < b.y; };
  std::vector<PlotPoint> kept;
  for (size_t run = 0; run < runs; ++run) {
    const auto begin = points.begin() + static_cast<int64_t>(run * n / runs);
    const auto end = points.begin() + static_cast<int64_t>((run + 1) * n / runs);
    auto [low, high] = std::minmax_element(begin, end, lower);
    if (high < low) std::swap(low, high);
    kept.push_back(*low);
    if (high != low) kept.push_back(*high);
  }
  return kept;
}

std::string EscapeMarkup(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

}  // namespace overtok

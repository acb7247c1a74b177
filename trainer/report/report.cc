#include "trainer/report/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/console.h"
#include "core/io/files.h"
#include "trainer/report/axis.h"

namespace overtok {
namespace {

constexpr char kPageStyle[] = R"css(
:root{color-scheme:light dark;--paper:#fff;--ink:#1a1a1a;--soft:#595959;--rule:#dcdcdc;--tint:#f5f6f7;--good:#0a7353}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#ececec;--soft:#a8a8a8;--rule:#363b40;--tint:#1d2125;--good:#52d1a8}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:820px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 4px}
h2{font-size:1.15rem;margin:36px 0 8px}
p{margin:8px 0}
.soft{color:var(--soft);font-size:.9rem}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin:20px 0}
.card{background:var(--tint);border-radius:8px;padding:12px 14px}
.card b{display:block;font-size:1.35rem;line-height:1.3;font-variant-numeric:tabular-nums}
.card .soft{display:block}
.good{color:var(--good)}
figure{margin:24px 0}
figure .ot-plot{display:block;width:100%;height:auto}
.narrow{display:none}
figcaption{color:var(--soft);font-size:.9rem;margin-top:4px}
.table{overflow-x:auto;-webkit-overflow-scrolling:touch}
table{border-collapse:collapse;width:100%;font-size:.92rem;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px 6px 0;border-bottom:1px solid var(--rule);text-align:right;vertical-align:bottom}
th:first-child,td:first-child{text-align:left}
thead th{font-weight:600}
caption{text-align:left;font-weight:600;padding:12px 0 2px}
td .soft{white-space:nowrap}
tbody th{font-weight:400}
tr.total th,tr.total td{font-weight:600}
.ot-sample{vertical-align:-1px;margin-right:4px}
pre{background:var(--tint);border-radius:8px;padding:12px;overflow-x:auto;font-size:.8rem;line-height:1.4}
summary{cursor:pointer}
.warning{border-left:4px solid #b3470a;padding:2px 0 2px 12px}
@media screen and (max-width:620px){td .soft{display:block;font-weight:400}.wide{display:none}.narrow{display:block}main{padding:16px 12px 32px}}
@media print{body{font-size:11pt}main{max-width:none;padding:0}.narrow{display:none}.wide{display:block}figure{margin:12px 0}figure .ot-plot{max-width:150mm}figure,table,.cards{break-inside:avoid}h2,caption{break-after:avoid}details:not([open]){display:none}}
)css";

std::string Number(double value, int decimals) {
  return std::isfinite(value) ? absl::StrFormat("%.*f", decimals, value) : "–";
}

std::string Compact(double value) { return std::isfinite(value) ? CompactNumber(value) : "–"; }

// A name for a narrow column: it may break after its separators.
std::string BreakableName(absl::string_view name) {
  std::string out;
  for (const char c : name) {
    absl::StrAppend(&out, EscapeMarkup(absl::string_view(&c, 1)));
    if (c == '_' || c == '-' || c == '/' || c == '.') out += "<wbr>";
  }
  return out;
}

// First and last evaluation that has a macro loss; null when there is none.
struct Span {
  const EvalPoint* first = nullptr;
  const EvalPoint* last = nullptr;
};

Span MacroSpan(const RunMetrics& run, MacroKind kind) {
  Span span;
  for (const EvalPoint& point : run.evals) {
    if (!std::isfinite(MacroOf(point, kind))) continue;
    if (span.first == nullptr) span.first = &point;
    span.last = &point;
  }
  return span;
}

std::string MacroName(MacroKind kind) {
  return kind == MacroKind::kPaloma ? "Paloma macro loss" : "Held-out macro loss";
}

// The best evaluation that counts: none inside a sampled stage.
const EvalPoint* BestMacro(const RunMetrics& run, MacroKind kind) {
  const EvalPoint* best = nullptr;
  for (const EvalPoint& point : run.evals) {
    if (point.sampled_stage || !std::isfinite(MacroOf(point, kind))) continue;
    if (best == nullptr || MacroOf(point, kind) < MacroOf(*best, kind)) best = &point;
  }
  return best;
}

std::string LossAt(const EvalPoint* point, MacroKind kind) {
  if (point == nullptr) return "–";
  return absl::StrFormat("%.4f <span class=\"soft\">step %d%s</span>", MacroOf(*point, kind),
                         point->step, point->sampled_stage ? ", sampled stage" : "");
}

std::string RunHeader(const std::vector<RunMetrics>& runs, size_t i) {
  const std::string sample = runs.size() > 1 ? LegendSample(static_cast<int>(i)) : "";
  return absl::StrCat("<th scope=\"col\">", sample, BreakableName(runs[i].name), "</th>");
}

std::string Card(const std::string& title, const std::string& value, const std::string& note) {
  return absl::StrCat("<div class=\"card\"><span class=\"soft\">", title, "</span><b>", value,
                      "</b><span class=\"soft\">", note, "</span></div>\n");
}

// The headline of a single run.
std::string Cards(const RunMetrics& run, MacroKind kind) {
  std::string out = "<div class=\"cards\">\n";
  const Span span = MacroSpan(run, kind);
  if (span.last != nullptr) {
    const double before = MacroOf(*span.first, kind), after = MacroOf(*span.last, kind);
    const bool moved = span.first != span.last;
    absl::StrAppend(&out,
                    Card(MacroName(kind),
                         absl::StrFormat("<span class=\"%s\">%.3f</span>",
                                         moved && after < before ? "good" : "", after),
                         moved ? absl::StrFormat("from %.3f at step %d", before, span.first->step)
                               : absl::StrFormat("at step %d", span.last->step)));
  }
  absl::StrAppend(&out, Card("Tokens", Compact(run.Last("throughput/total_tokens")),
                             absl::StrCat(run.last_step, " steps")));
  const double flops = run.Last("flops/6nd_backbone");
  absl::StrAppend(
      &out, Card("6ND", std::isfinite(flops) ? ScientificNumber(flops, 3) : "–", "training FLOPs"));
  absl::StrAppend(&out,
                  Card("Speed", Compact(run.tokens_per_second),
                       std::isfinite(run.seconds)
                           ? absl::StrCat("tokens/s, ", FormatDuration(run.seconds), " in all")
                           : "tokens/s"));
  return out + "</div>\n";
}

std::string Figure(const Plot& plot, const std::string& id, const std::string& caption) {
  std::string wide = RenderSvg(plot, kWidePlot, id + "-wide", false);
  std::string narrow = RenderSvg(plot, kNarrowPlot, id + "-narrow", false);
  return absl::StrCat("<figure>\n<div class=\"wide\">", wide, "</div>\n<div class=\"narrow\">",
                      narrow, "</div>\n<figcaption>", caption, "</figcaption>\n</figure>\n");
}

// One row per measure, one column per run: readable on a telephone with few runs.
std::string FinalNumbers(const std::vector<RunMetrics>& runs, MacroKind kind) {
  struct Row {
    std::string name;
    std::function<std::string(const RunMetrics&)> value;
    bool total = false;
  };
  const std::string macro = MacroName(kind);
  std::vector<Row> rows = {
      {macro + ", first",
       [&](const RunMetrics& run) { return LossAt(MacroSpan(run, kind).first, kind); }},
      {macro + ", last",
       [&](const RunMetrics& run) { return LossAt(MacroSpan(run, kind).last, kind); }, true},
      {macro + ", best", [&](const RunMetrics& run) { return LossAt(BestMacro(run, kind), kind); }},
      {"Training loss, last",
       [](const RunMetrics& run) {
         if (run.train.empty()) return std::string("–");
         const TrainPoint& last = run.train.back();
         const char* kind_note = last.kind == LossKind::kSampled ? " sampled"
                                 : last.kind == LossKind::kFocal ? " focal"
                                                                 : "";
         return absl::StrFormat("%.4f<span class=\"soft\">%s</span>", last.loss, kind_note);
       }},
      {"Steps", [](const RunMetrics& run) { return absl::StrCat(run.last_step); }},
      {"Tokens D",
       [](const RunMetrics& run) { return Compact(run.Last("throughput/total_tokens")); }},
      {"6ND",
       [](const RunMetrics& run) {
         const double flops = run.Last("flops/6nd_backbone");
         return std::isfinite(flops) ? ScientificNumber(flops, 3) : "–";
       }},
      {"Parameters", [](const RunMetrics& run) { return Compact(run.Last("parameter_count")); }},
      {"Tokens/s, median", [](const RunMetrics& run) { return Compact(run.tokens_per_second); }},
      {"Wall time",
       [](const RunMetrics& run) {
         return std::isfinite(run.seconds) ? FormatDuration(run.seconds) : "–";
       }},
      {"Peak memory, GiB",
       [](const RunMetrics& run) { return Number(run.Last("memory/peak_gib"), 2); }},
  };
  // Step times by stage, smallest candidate set first, the full softmax last.
  std::set<int64_t> stages;
  for (const RunMetrics& run : runs) {
    for (const auto& entry : run.step_seconds) stages.insert(entry.first);
  }
  const bool full = stages.erase(0) > 0;
  std::vector<int64_t> order(stages.begin(), stages.end());
  if (full) order.push_back(0);
  for (const int64_t stage : order) {
    const std::string what =
        stage > 0 ? absl::StrFormat("P = %d", stage) : std::string("full softmax");
    rows.push_back({"Step time, ms, " + what, [stage](const RunMetrics& run) {
                      const auto it = run.step_seconds.find(stage);
                      return it == run.step_seconds.end() ? std::string("–")
                                                          : Number(1e3 * it->second, 1);
                    }});
  }
  std::string out = "<div class=\"table\"><table>\n<thead><tr><th scope=\"col\"></th>";
  for (size_t i = 0; i < runs.size(); ++i) out += RunHeader(runs, i);
  out += "</tr></thead>\n<tbody>\n";
  for (const Row& row : rows) {
    absl::StrAppend(&out, row.total ? "<tr class=\"total\">" : "<tr>", "<th scope=\"row\">",
                    row.name, "</th>");
    for (const RunMetrics& run : runs) absl::StrAppend(&out, "<td>", row.value(run), "</td>");
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

// One measure of the last evaluation, a row per set and a column per run; for one run the first
// evaluation as well. Empty when no run has the measure.
std::string SetTable(const std::vector<RunMetrics>& runs, const std::string& caption,
                     double SetScore::*measure, double EvalPoint::*macro) {
  std::set<std::string> sets;
  for (const RunMetrics& run : runs) {
    for (const EvalPoint& point : run.evals) {
      for (const auto& [name, score] : point.sets) {
        if (std::isfinite(score.*measure)) sets.insert(name);
      }
    }
  }
  if (sets.empty()) return "";
  std::string header;
  std::vector<const EvalPoint*> columns;
  const auto add_column = [&](const std::string& name, const EvalPoint& point) {
    absl::StrAppend(&header, "<th scope=\"col\">", name, "</th>");
    columns.push_back(&point);
  };
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::vector<EvalPoint>& evals = runs[i].evals;
    if (evals.empty()) continue;
    if (runs.size() > 1) {
      add_column(LegendSample(static_cast<int>(i)) + BreakableName(runs[i].name), evals.back());
      continue;
    }
    if (evals.size() > 1) add_column(absl::StrCat("step ", evals[0].step), evals[0]);
    add_column(absl::StrCat("step ", evals.back().step), evals.back());
  }
  std::string out = absl::StrCat("<div class=\"table\"><table>\n<caption>", caption,
                                 "</caption>\n<thead><tr><th scope=\"col\">set</th>", header,
                                 "</tr></thead>\n<tbody>\n");
  for (const std::string& set : sets) {
    absl::string_view shown = set;
    absl::ConsumePrefix(&shown, "held_out/");
    absl::StrAppend(&out, "<tr><th scope=\"row\">", EscapeMarkup(shown), "</th>");
    for (const EvalPoint* point : columns) {
      const auto it = point->sets.find(set);
      absl::StrAppend(&out, "<td>",
                      Number(it == point->sets.end() ? kMissing : it->second.*measure, 3), "</td>");
    }
    out += "</tr>\n";
  }
  if (macro != nullptr) {
    out += "<tr class=\"total\"><th scope=\"row\">macro mean</th>";
    for (const EvalPoint* point : columns) {
      absl::StrAppend(&out, "<td>", Number(point->*macro, 3), "</td>");
    }
    out += "</tr>\n";
  }
  return out + "</tbody></table></div>\n";
}

std::string Warnings(const std::vector<RunMetrics>& runs) {
  std::string out;
  for (const RunMetrics& run : runs) {
    for (const std::string& warning : run.warnings) {
      absl::StrAppend(&out, "<p class=\"warning\">", EscapeMarkup(run.name), ": ",
                      EscapeMarkup(warning), "</p>\n");
    }
  }
  return out;
}

}  // namespace

std::string RenderReport(const std::vector<RunMetrics>& runs) {
  const MacroKind kind = ChooseMacro(runs);
  const std::string title = runs.size() == 1 ? runs[0].name : absl::StrCat(runs.size(), " runs");
  std::string out = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
      EscapeMarkup(title), " · overtok report</title>\n<style>", kPageStyle, PlotStyle(),
      "</style>\n</head>\n<body>\n<main>\n<h1>", EscapeMarkup(title),
      "</h1>\n<p class=\"soft\">overtok report");
  if (runs.size() == 1) {
    for (const std::string& fact : runs[0].machine)
      absl::StrAppend(&out, " · ", EscapeMarkup(fact));
  }
  out += "</p>\n";
  out += Warnings(runs);
  if (runs.size() == 1) out += Cards(runs[0], kind);

  const Plot training = TrainingPlot(runs), macro = MacroPlot(runs), passes = PassesPlot(runs);
  if (!macro.series.empty()) {
    std::string caption =
        kind == MacroKind::kPaloma
            ? "The plain mean of the losses of Paloma&#39;s 16 subsets. Lower is better."
            : "The plain mean of the losses of the held-out sets. Lower is better.";
    const bool skips_start = std::any_of(runs.begin(), runs.end(), [&](const RunMetrics& run) {
      return macro.log_x && !run.evals.empty() && run.evals.front().step == 0;
    });
    if (skips_start) caption += " The evaluation before the first step is in the table.";
    const bool sampled = std::any_of(runs.begin(), runs.end(), [](const RunMetrics& run) {
      return std::any_of(run.evals.begin(), run.evals.end(),
                         [](const EvalPoint& point) { return point.sampled_stage; });
    });
    if (sampled) {
      caption +=
          " Hollow points were scored inside a sampled stage, where the full softmax is worse "
          "than the weights deserve; they count for no best value.";
    }
    out += Figure(macro, "macro", caption);
  }
  if (!passes.series.empty()) {
    out += Figure(passes, "passes",
                  "The same evaluations over passes; the one before the first step is left out.");
  }
  if (!training.series.empty()) {
    std::string caption = "Single batches are faint; the line is their moving average.";
    const bool other = std::any_of(training.series.begin(), training.series.end(),
                                   [](const PlotSeries& series) { return series.dashed; });
    if (other) {
      caption +=
          " Dashed: losses over sampled candidates, or focal losses; they are other quantities, "
          "and no lower loss.";
    }
    out += Figure(training, "training", caption);
  }
  out += "<h2>Final numbers</h2>\n" + FinalNumbers(runs, kind);
  const std::string sets =
      SetTable(runs, "Loss, nats per token", &SetScore::loss,
               kind == MacroKind::kPaloma ? &EvalPoint::paloma_macro : &EvalPoint::held_out_macro) +
      SetTable(runs, "Bits per byte", &SetScore::bpb, nullptr);
  if (!sets.empty()) out += "<h2>Evaluation sets</h2>\n" + sets;
  out +=
      "<p class=\"soft\">6ND: six times the parameters in the matrices of the blocks times the "
      "tokens trained on, repeated ones included. Bits per byte divides by the UTF-8 bytes of the "
      "scored text, so that different tokenizers can be compared.</p>\n";
  for (const RunMetrics& run : runs) {
    if (run.config.empty()) continue;
    absl::StrAppend(&out, "<details><summary>Configuration of ", EscapeMarkup(run.name),
                    "</summary><pre>", EscapeMarkup(run.config), "</pre></details>\n");
  }
  return out + "</main>\n</body>\n</html>\n";
}

absl::StatusOr<std::vector<std::string>> WriteReport(const std::vector<std::string>& directories,
                                                     const std::string& out,
                                                     const std::string& svg_prefix) {
  std::vector<RunMetrics> runs;
  const std::vector<std::string> names = RunNames(directories);
  for (size_t i = 0; i < directories.size(); ++i) {
    OT_ASSIGN_OR_RETURN(RunMetrics run, ReadRunMetrics(directories[i]));
    run.name = names[i];
    for (const std::string& warning : run.warnings) {
      LogWarning(absl::StrCat(run.name, ": ", warning));
    }
    runs.push_back(std::move(run));
  }
  std::vector<std::string> written;
  OT_RETURN_IF_ERROR(WriteFileAtomically(out, RenderReport(runs)));
  written.push_back(out);
  if (!svg_prefix.empty()) {
    for (const auto& [plot, suffix] : {std::pair(TrainingPlot(runs), "-training.svg"),
                                       std::pair(MacroPlot(runs), "-held-out.svg"),
                                       std::pair(PassesPlot(runs), "-passes.svg")}) {
      if (plot.series.empty()) continue;
      const std::string path = svg_prefix + suffix;
      OT_RETURN_IF_ERROR(WriteFileAtomically(path, RenderSvg(plot, kWidePlot, "plot", true)));
      written.push_back(path);
    }
  }
  return written;
}

}  // namespace overtok

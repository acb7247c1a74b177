// The report of one or several runs: one HTML page with pictures and tables, complete in itself
// (no scripts, nothing loaded), or the pictures as files.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"
#include "trainer/report/run_metrics.h"
#include "trainer/report/svg_plot.h"

namespace overtok {

// Training loss over tokens (over steps where a run has no token counts): raw values faint, their
// moving average in front. A sampled or focal loss is drawn dashed and never joined with the
// cross-entropy over all classes. No series when no run has training lines.
Plot TrainingPlot(const std::vector<RunMetrics>& runs);

// Which macro loss is compared: Paloma's when every run with evaluations has it.
enum class MacroKind { kHeldOut, kPaloma };
MacroKind ChooseMacro(const std::vector<RunMetrics>& runs);
double MacroOf(const EvalPoint& point, MacroKind kind);

// Macro loss over 6ND (over tokens, or steps, where a run has no 6ND). Logarithmic when the values
// span more than a decade; a point before the first step then has no place, and is left to the
// table. Evaluations inside a sampled stage are hollow and joined by dashes. No series when no run
// has such evaluations.
Plot MacroPlot(const std::vector<RunMetrics>& runs);

// The same over passes, for runs that repeat data; no series when none does.
Plot PassesPlot(const std::vector<RunMetrics>& runs);

// The page. `runs` is not empty.
std::string RenderReport(const std::vector<RunMetrics>& runs);

// Reads the run directories, writes the page to `out` and, when `svg_prefix` is not empty, the
// pictures to <prefix>-training.svg, <prefix>-held-out.svg and <prefix>-passes.svg. Returns the
// paths written. A run without metrics is an error that names it; nothing is written then.
absl::StatusOr<std::vector<std::string>> WriteReport(const std::vector<std::string>& directories,
                                                     const std::string& out,
                                                     const std::string& svg_prefix);

}  // namespace overtok

// What a person sees while work goes on. Progress: one line on a terminal that rewrites itself, and
// plain lines at a lower rate when standard error is not a terminal or NO_COLOR is set. Log lines
// erase and restore the progress line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace overtok {

// From here on nothing of what this file offers is shown: of a run's ranks one speaks.
void SilenceConsole();

void LogInfo(absl::string_view text);     // to standard error, one line
void LogWarning(absl::string_view text);  // "warning: ..."

class Progress {
 public:
  // `total` units of work ("MB", "steps", ...); total 0 means unknown (no percentage, no ETA).
  Progress(std::string title, double total, std::string unit);
  ~Progress();                                              // erases the line
  void Update(double done, absl::string_view detail = "");  // rate-limited, cheap to call often
  void Finish(absl::string_view summary);                   // replaces the line by `summary`

 private:
  std::string title_, unit_;
  double total_;
  std::chrono::steady_clock::time_point start_, last_;
  bool shown_ = false;
};

// "3h12m", "45s"; "?" when unknown (negative or not finite).
std::string FormatDuration(double seconds);
// "1.05M", "131k", "512": three significant digits.
std::string FormatCount(double value);
std::string FormatBytes(int64_t bytes);  // "1.42 GiB"

}  // namespace overtok

// Progress and log lines on standard error. One progress line at a time is shown; its text is kept
// here so that log lines can erase and restore it.
#include "core/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace overtok {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kTerminalInterval = 0.1, kPlainInterval = 10;  // seconds between two updates

std::mutex console_mutex;
std::atomic<bool> silent{false};
std::string& ShownLine() {
  static std::string* line = new std::string();  // empty: no progress line is on the screen
  return *line;
}

bool IsTerminal() {
  static const bool terminal = [] {
    const char* no_color = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    return isatty(STDERR_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') &&
           (term == nullptr || std::string(term) != "dumb");
  }();
  return terminal;
}

size_t TerminalWidth() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

void EraseShownLine() {
  if (!ShownLine().empty()) std::fputs("\r\033[K", stderr);
}

void Print(const std::string& line) {
  if (silent) return;
  const std::lock_guard<std::mutex> lock(console_mutex);
  EraseShownLine();
  std::fprintf(stderr, "%s\n", line.c_str());
  std::fputs(ShownLine().c_str(), stderr);
  std::fflush(stderr);
}

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

void SilenceConsole() { silent = true; }

void LogInfo(absl::string_view text) { Print(std::string(text)); }
void LogWarning(absl::string_view text) { Print(absl::StrCat("warning: ", text)); }

Progress::Progress(std::string title, double total, std::string unit)
    : title_(std::move(title)), unit_(std::move(unit)), total_(total), start_(Clock::now()) {
  last_ = start_;
}

Progress::~Progress() {
  const std::lock_guard<std::mutex> lock(console_mutex);
  if (shown_ && IsTerminal()) {
    EraseShownLine();
    ShownLine().clear();
    std::fflush(stderr);
  }
}

void Progress::Update(double done, absl::string_view detail) {
  // The first line waits for the interval too: short work shows nothing.
  if (silent || SecondsSince(last_) < (IsTerminal() ? kTerminalInterval : kPlainInterval)) return;
  last_ = Clock::now();
  const double elapsed = SecondsSince(start_);
  std::string line = absl::StrCat(title_, " ", FormatCount(done));
  if (total_ > 0) {
    absl::StrAppend(&line, "/", FormatCount(total_), " ", unit_,
                    absl::StrFormat(" (%.1f%%)", 100 * done / total_));
  } else {
    absl::StrAppend(&line, " ", unit_);
  }
  if (elapsed > 0) absl::StrAppend(&line, " ", FormatCount(done / elapsed), " ", unit_, "/s");
  if (!detail.empty()) absl::StrAppend(&line, " ", detail);
  if (total_ > 0) {
    absl::StrAppend(&line, " eta ",
                    FormatDuration(done > 0 ? elapsed * (total_ - done) / done : -1));
  }
  const std::lock_guard<std::mutex> lock(console_mutex);
  if (!IsTerminal()) {
    std::fprintf(stderr, "%s\n", line.c_str());
  } else {
    EraseShownLine();
    line.resize(std::min(line.size(), TerminalWidth() - 1));  // a wrapped line cannot be erased
    ShownLine() = line;
    std::fputs(line.c_str(), stderr);
  }
  std::fflush(stderr);
  shown_ = true;
}

void Progress::Finish(absl::string_view summary) {
  if (silent) return;
  const std::lock_guard<std::mutex> lock(console_mutex);
  EraseShownLine();
  ShownLine().clear();
  shown_ = false;
  std::fprintf(stderr, "%s\n", std::string(summary).c_str());
  std::fflush(stderr);
}

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  if (seconds >= 1e9) return "?";
  const int64_t s = std::llround(seconds);
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

std::string FormatCount(double value) {
  if (!std::isfinite(value)) return "?";
  const double size = std::abs(value);
  const char* suffix = "";
  double scale = 1;
  // The borders are where three digits round up to the next unit.
  if (size >= 999.5e9) {
    suffix = "T";
    scale = 1e12;
  } else if (size >= 999.5e6) {
    suffix = "B";
    scale = 1e9;
  } else if (size >= 999.5e3) {
    suffix = "M";
    scale = 1e6;
  } else if (size >= 999.5) {
    suffix = "k";
    scale = 1e3;
  }
  const double scaled = value / scale, digits = std::abs(scaled);
  if (scale == 1 && value == std::floor(value)) return absl::StrFormat("%.0f", value);
  return absl::StrFormat("%.*f%s", digits >= 99.95 ? 0 : digits >= 9.995 ? 1 : 2, scaled, suffix);
}

std::string FormatBytes(int64_t bytes) {
  const char* const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (std::abs(bytes) < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (std::abs(value) >= 1023.995 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.2f %s", value, units[unit]);
}

}  // namespace overtok

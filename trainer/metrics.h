// metrics.jsonl: one JSON object per line, appended and handed to the kernel line by line
// (docs/formats/metrics.md). What a run writes is a function of its configuration and data, times
// and machine readings apart: after a resume the file is cut back to the checkpoint, so that its
// lines equal those of a run that was never stopped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

// {"step": ..., "time": ..., "kind": ...} and then what is added, in that order.
class MetricsLine {
 public:
  // `step`: completed optimizer steps. `kind`: train, eval or event.
  MetricsLine(int64_t step, absl::string_view kind);

  // A value that JSON has no number for is written as the string "NaN", "Infinity" or "-Infinity".
  MetricsLine& Add(absl::string_view name, double value);
  MetricsLine& Add(absl::string_view name, int64_t value);
  MetricsLine& Add(absl::string_view name, absl::string_view text);
  // true or false. (An overload would take pointers to text.)
  MetricsLine& AddFlag(absl::string_view name, bool value);
  // A hash: 16 hex digits, as text.
  MetricsLine& AddHash(absl::string_view name, uint64_t hash);

  // The line without its end, stamped with `unix_seconds`.
  std::string ToJson(double unix_seconds) const;

 private:
  int64_t step_;
  std::string kind_, rest_;
};

class MetricsFile {
 public:
  // Opens `path` for appending (created when missing) and cuts it back to `keep_bytes`. A file that
  // is shorter than that is an error: it is not the one the checkpoint was written with.
  static absl::StatusOr<std::unique_ptr<MetricsFile>> Open(absl::string_view path,
                                                           int64_t keep_bytes);
  MetricsFile(const MetricsFile&) = delete;
  MetricsFile& operator=(const MetricsFile&) = delete;
  ~MetricsFile();

  // Stamps the line with the present time and appends it. Nothing of it stays in the file when it
  // cannot be written whole.
  absl::Status Write(const MetricsLine& line);
  // To the disk: before a checkpoint that names bytes().
  absl::Status Sync();
  int64_t bytes() const { return bytes_; }

 private:
  MetricsFile(std::string path, int fd, int64_t bytes)
      : path_(std::move(path)), fd_(fd), bytes_(bytes) {}

  std::string path_;
  int fd_;
  int64_t bytes_;
};

// Seconds since 1970 of the system's clock.
double UnixSeconds();

}  // namespace overtok

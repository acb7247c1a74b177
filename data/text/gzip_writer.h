// Writes a gzip file whose bytes depend on its content alone (no time, no name).
#pragma once

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace overtok {

class GzipWriter {
 public:
  static absl::StatusOr<std::unique_ptr<GzipWriter>> Create(absl::string_view path);
  virtual ~GzipWriter() = default;
  virtual absl::Status Write(absl::string_view bytes) = 0;
  virtual absl::Status Close() = 0;  // writes the end and fsyncs
};

}  // namespace overtok

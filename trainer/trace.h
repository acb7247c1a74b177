// `overtok trace`: what N ordinary training steps did, written so that another implementation can
// recompute them (docs/formats/trace.md). Slow and for small models; a debugging and parity tool.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "trainer/config/config.h"

namespace overtok {

struct TraceOptions {
  int64_t steps = 3;
  std::string out;  // HDF5 file; written under a temporary name, then renamed
  int64_t max_elements = int64_t{1} << 26;  // refuse larger tensors
  // Options that the judge does not know (z_loss, Newton-Schulz coefficients other than `simple`)
  // are refused without it.
  bool unjudged = false;
};

// `resolved_yaml`: the resolved configuration as text, stored in the file.
absl::Status WriteTrace(const Config& config, absl::string_view resolved_yaml,
                        const TraceOptions& options);

}  // namespace overtok

// `overtok trace`: what N ordinary training steps did, written so that another implementation can
// recompute them (docs/formats/trace.md). Slow and for small models; a debugging and parity tool.
#pragma once

#include <cstdint>
#include <string>

#include "core/comm/communicator.h"
#include "core/status.h"
#include "trainer/config/load.h"

namespace overtok {

struct TraceOptions {
  int64_t steps = 3;
  std::string out;  // HDF5 file; written under a temporary name, then renamed
  int64_t max_elements = int64_t{1} << 26;  // refuse larger tensors
  // Options that the judge does not know (z_loss, Newton-Schulz coefficients other than `simple`)
  // are refused without it.
  bool unjudged = false;
};

// Collective. Opens the data that the configuration names, resolves its horizon, and runs the steps
// on all ranks of `world`; rank 0 writes.
absl::Status WriteTrace(LoadedConfig loaded, const TraceOptions& options, Communicator* world);

}  // namespace overtok

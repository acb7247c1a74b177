// Whether a configuration can run on so many ranks, and where one of them stands.
#pragma once

#include <string>

#include "core/comm/mesh.h"
#include "core/status.h"
#include "trainer/config/load.h"

namespace overtok {

// Errors name every key that does not fit the number of ranks, with what would. An evaluation does
// not divide a batch.
absl::Status CheckLayout(const LoadedConfig& loaded, int world, bool training = true);

// Collective. An error unless every rank has the same configuration: it names the keys that differ,
// their values on rank 0 and on the first rank that has others.
absl::Status CheckSameConfig(Communicator& world, const Config& config);

// Micro-batches of one rank in a step.
int64_t MicroBatchesOf(const Config& config, int world);

// What is worth telling before the first step: where the fixed tree of gradient sums does not make
// this layout equal to others. Empty: nothing.
std::string LayoutWarning(const Config& config, int world);

}  // namespace overtok

// Which hashed tables of a run lie in host memory beside its device, under optimizer.tables.memory:
// auto. A function of the configuration and of the device's bytes alone, so that a plan and the run
// agree; no bit of a run depends on it.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "core/comm/mesh.h"
#include "trainer/config/config.h"

namespace overtok {

// Of a device's memory: what neither tensors nor scratch take. The driver's context and kernels
// (some 600 MiB), the workspace of products, buffers of NCCL (some hundred MiB a communicator),
// graphs of a step, and the ends of chunks.
inline constexpr int64_t kDeviceMargin = int64_t{2} << 30;

// Fills optimizer.tables.moved: tables go to host memory, the largest first, of equal ones the
// first first, until needed(*config), the bytes of tensors on the device, and the margin fit into
// `device_bytes`, or no table is left. Nothing moves on the CPU, nor where the configuration says
// where tables lie.
void PlaceTables(int64_t device_bytes, absl::FunctionRef<int64_t(const Config&)> needed,
                 Config* config);
// Whether the configuration says where its tables lie, without a device's bytes.
bool TablesArePlaced(const Config& config);
inline constexpr char kTablesNotPlaced[] =
    "optimizer.tables.memory: auto counts as device here, where the GPU's memory is not known; "
    "--hardware tells it, a run asks its GPU";
// PlaceTables of what a step takes alone, without evaluations: of a benchmark.
void PlaceTablesOfStep(int64_t device_bytes, const Mesh& mesh, Config* config);

}  // namespace overtok

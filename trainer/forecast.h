// What `overtok bench step` would measure on a described machine, op by op: every op of a step is
// counted where the step asks for it (trainer/counting_device.h) and its time estimated from bytes
// and operations (SecondsOf). One rank, one op at a time; launches, the host and the loader are
// left out. `overtok plan --ranks` (trainer/predict.h) estimates the same from closed sums, for
// many ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ops/profile.h"
#include "core/status.h"
#include "trainer/bench_batches.h"
#include "trainer/config/config.h"
#include "trainer/config/derived.h"
#include "trainer/hardware.h"

namespace overtok {

// What of the step an op belongs to.
enum class StepPart : uint8_t {
  kBlockProducts,
  kAttention,
  kHeadProducts,
  kSoftmax,
  kBlockPasses,  // norms, rotations, SwiGLU, residual sums
  kLookups,      // embedding, input tables, candidates' rows, and their gradients
  kGradients,    // zeroed, summed, measured
  kOptimizer,    // Newton-Schulz and all updates
  kTables,       // replay and update of table rows
};
inline constexpr int kStepParts = 9;
const char* NameOf(StepPart part);

struct ForecastOp {
  OpTime op;  // of one step; without a time
  StepPart part = StepPart::kBlockPasses;
  double seconds = 0;
};

// A step of one stage of the vocabulary head.
struct ForecastStage {
  StageSpan span;
  double share = 1;             // of the run's steps
  std::vector<ForecastOp> ops;  // longest first
  // What the host took here, on this machine and not the described one, to name what the step works
  // on (ids, candidates, rows of tables), and with asking for its ops; launches apart. It does both
  // while the device is at the step before, which has to last longer.
  double naming_seconds = 0, host_seconds = 0;
  double seconds() const;
  double seconds(StepPart part) const;
};

struct StepForecast {
  std::vector<ForecastStage> stages;  // in their order
  double tokens = 0;                  // of a step
  double device_bytes = 0, host_bytes = 0;
  double flops = 0;  // of the products and attention of the first stage's step

  double seconds() const;  // of the run's mean step
  std::string ToJson()
      const;  // one object, one line; the keys of BenchStepResult where it has them
};

// A step in the middle of each stage on the batches of (ids, seed). Takes host memory for inputs
// (ids, weights, names of rows) as a run does.
absl::StatusOr<StepForecast> ForecastSteps(Config config, IdDistribution ids, uint64_t seed,
                                           const Hardware& hardware);

}  // namespace overtok

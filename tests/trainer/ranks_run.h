// Training steps of a tiny model by several ranks, as threads of one process: what they start from,
// what they compute, and what they end with, put together from all ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/sharding.h"
#include "core/status.h"
#include "data/batch.h"
#include "trainer/train_step.h"

namespace overtok::testing {

// V = 101, d = 48, m = 56, H = K = 4, 2 layers, S = 8, and 4 windows a step of one micro-batch
// each, plus overrides ("key.path=value"). 101 is no multiple of anything: with 4 tensor ranks two
// have no class at all.
Config RanksConfig(const std::vector<std::string>& overrides = {});
// Overrides that turn on a sampled softmax for all steps, with so many windows a block.
std::string Sampled(int64_t candidates, int64_t block_sequences);
// Overrides of the two published methods: input tables with a second head, and with n-gram heads.
std::vector<std::string> OtH();
std::vector<std::string> Ot2();

// Windows of a step, a pure function of (windows, step): other documents and another number of
// targets in each. Window 1 has no target at all.
Batch RanksBatch(const Config& config, int64_t step);

// Logical tensors by name, put together from the pieces of all ranks.
struct LogicalTensor {
  DType dtype = DType::kF32;
  std::vector<char> bytes;
  std::vector<int> given;  // how often each element was
  bool EachOnce() const;
  bool operator==(const LogicalTensor& other) const;  // bit for bit
  std::vector<double> values() const;                 // of f32
};
using LogicalTensors = std::map<std::string, LogicalTensor>;

struct RanksRun {
  int data = 1, tensor = 1;
  int64_t steps = 1;
  std::function<void(TrainStep&)> prepare = {};  // called on every rank before the first step
  std::function<void(TrainStep&)> finish = {};   // and after the last
  std::function<Batch(const Config&, int64_t step)> batch = RanksBatch;
  Device* device = CpuDevice();  // of all ranks
};
struct RanksResult {
  LogicalTensors initial, gradients;  // gradients: of the last step, tables scattered
  LogicalTensors values, state;       // in the end
  std::vector<StepResult> steps;      // of rank 0
  std::string error;                  // of rank 0's first step that failed; it ended the run
  int results_that_differ = 0;        // ranks whose losses, norms or errors are not rank 0's
  int copies_that_differ = 0;         // pieces that a rank holds and that are not their owner's
};
RanksResult TrainOnRanks(Config config, const RanksRun& run);

// |a - b| / |b| in the Frobenius norm; |a| where b is zero.
double Distance(const LogicalTensor& a, const LogicalTensor& b);
// The largest over all tensors; infinite where names, sizes or dtypes differ. Sets `worst`.
double LargestDistance(const LogicalTensors& a, const LogicalTensors& b, std::string* worst);
// Names of tensors that are not equal bit for bit, or "".
std::string Differing(const LogicalTensors& a, const LogicalTensors& b);

}  // namespace overtok::testing

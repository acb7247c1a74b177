// `overtok plan`: what a configuration will take, before anything is taken. Memory is counted by
// running the real constructors on a dry Memory, so the numbers are the run's own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "trainer/config/derived.h"
#include "trainer/config/load.h"
#include "trainer/config/table_costs.h"

namespace overtok {

// Bytes a training run holds.
struct MemoryPlan {
  std::array<int64_t, kPurposes> by_purpose{};
  DeviceKind device = DeviceKind::kCpu;  // where the purposes lie; on cuda not in host memory
  // Batches read ahead, counts of windows, the program itself; beside a device with memory of its
  // own also what the host writes for it, and copies of state for checkpoints.
  int64_t host = 0;
  int64_t program = 0;     // of `host`: code and libraries, a fixed amount that is assumed
  int64_t tables = 0;      // of these, values and state of hashed tables
  int64_t checkpoint = 0;  // bytes of one checkpoint on the disk
  int64_t purposes() const;
  int64_t total() const { return purposes() + host; }
};
// Of the rank that `layout` names. `windows`: of the corpus; 0 where it is not known.
MemoryPlan PlanMemory(const Config& config, int64_t windows, const Layout& layout = {});
// Puts tables where they fit a device of so many bytes, by what PlanMemory counts
// (trainer/table_memory.h).
void PlaceTablesOfTraining(int64_t device_bytes, const Layout& layout, Config* config);

// An error that lists the plan by purpose when so many ranks with it exceed what the machine has,
// or one of them the GPU that it would compute on; OK where that is unknown. device: null where
// none is open.
absl::Status CheckMemoryFits(const MemoryPlan& plan, int ranks_here = 1,
                             const Device* device = nullptr);

// What the methods of a configuration (tables, further heads, sampled softmax) come to beside the
// same configuration without them.
struct MethodCosts {
  int64_t parameters = 0;        // added
  int64_t memory = 0;            // bytes that a training run holds more
  int64_t checkpoint = 0;        // bytes that a checkpoint is larger
  double forward_flops = 0;      // per token, more (negative: less) than the causal count
  double relative_training = 1;  // FLOPs of a step, of those without the methods
};

struct Plan {
  Config config;
  std::vector<std::string> warnings;
  ParameterCounts parameters;
  MemoryPlan memory;
  // Forward, per token: as levanter counts and causal, both of the baseline; and what a run
  // computes.
  ForwardFlops flops, causal_flops, actual_flops;
  int64_t tokens = 0;  // of the run; 0: the horizon needs the corpus
  // Of the run.
  double training_flops = 0, causal_training_flops = 0, actual_training_flops = 0;
  double backbone_flops = 0;
  std::vector<StageSpan> stages;  // empty: the steps are not known
  std::vector<TableCost> tables;
  // Whether `tables` says where each lies in a run: not where optimizer.tables.memory leaves that
  // to a GPU of unknown size.
  bool tables_placed = true;
  std::vector<TableOption> table_options;            // where there are tables
  std::optional<double> table_parameters_per_token;  // input tables; where unique tokens are known
  std::optional<MethodCosts> methods;                // where the configuration has any
  // The corpus, where its shards can be read; else why not.
  std::optional<int64_t> corpus_tokens, windows;
  double passes = 0;
  std::string corpus_problem;
  int64_t disk = 0;  // checkpoints that exist at once, bytes
  std::vector<std::string> does_not_fit;

  std::string ToText() const;
  std::string ToJson() const;  // one object, indented
};

// Allocates nothing but what opening shards takes. A configuration whose corpus cannot be read
// still has a plan.
absl::StatusOr<Plan> MakePlan(LoadedConfig loaded);

// The configuration without tables, further heads, sampled softmax and focal loss.
Config WithoutMethods(Config config);

}  // namespace overtok

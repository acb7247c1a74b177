// `overtok plan`: what a configuration will take, before anything is taken. Memory is counted by
// running the real constructors on a dry Memory, so the numbers are the run's own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "trainer/config/derived.h"
#include "trainer/config/load.h"

namespace overtok {

// Bytes a training run holds.
struct MemoryPlan {
  std::array<int64_t, kPurposes> by_purpose{};
  int64_t host = 0;        // batches read ahead, counts of windows, the program itself
  int64_t checkpoint = 0;  // bytes of one checkpoint on the disk
  int64_t total() const;
};
// `windows`: of the corpus; 0 where it is not known.
MemoryPlan PlanMemory(const Config& config, int64_t windows);

// An error that lists the plan by purpose when it exceeds what the machine has; OK where that is
// unknown.
absl::Status CheckMemoryFits(const MemoryPlan& plan);

struct Plan {
  Config config;
  ParameterCounts parameters;
  MemoryPlan memory;
  ForwardFlops flops, causal_flops;  // forward, per token
  int64_t tokens = 0;                // of the run; 0: the horizon needs the corpus
  double training_flops = 0, causal_training_flops = 0, backbone_flops = 0;  // of the run
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

}  // namespace overtok

// `overtok plan --ranks N`: what a configuration will take on N ranks, told by one process that
// starts none of them: memory of a rank and of a node, bytes that ranks send in a step by kind, how
// evenly the vocabulary is divided, and how long a step takes on a described machine.
// docs/planning.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "trainer/config/load.h"
#include "trainer/hardware.h"
#include "trainer/plan.h"
#include "trainer/predict.h"
#include "trainer/traffic.h"

namespace overtok {

struct RanksOptions {
  int ranks = 1;
  int ranks_per_node = 0;  // 0: of the machine the devices of a node; without one all ranks
  std::optional<Hardware> hardware = std::nullopt;
};

// One rank that was looked at.
struct PlannedRankCosts {
  int rank = 0;
  MemoryPlan memory;
  std::vector<TableCost> tables;  // of all ranks together, and where this one's part lies
  TrafficByKind sent{};
  int64_t sent_in_all() const;
};

// A stage of the vocabulary heads on the described machine.
struct PredictedStage {
  StageSpan span;  // of an unknown number of steps: [0, 0)
  StepPrediction step;
};

struct RanksPlan {
  Config config;
  Layout layout;  // of rank 0
  int ranks_per_node = 1;
  int64_t micro_batches = 0;  // of a rank
  // All up to 64 ranks; of more, those of the first node (up to 64), and the tensor groups of the
  // middle and the last data rank.
  std::vector<PlannedRankCosts> ranks;
  size_t largest = 0, busiest = 0;          // of `ranks`: most memory, most bytes sent
  std::array<double, kPurposes> mean{};     // bytes of a looked-at rank
  double mean_memory = 0, node_memory = 0;  // node: the fullest that was looked at
  int64_t checkpoint = 0;                   // of all ranks together
  bool tables_estimated = false;            // Traffic::kTables is an expectation
  bool tables_placed = true;                // as Plan::tables_placed
  // Of the classes (full softmax) or the candidates (on the corpus, sampled), the busiest rank's
  // share relative to the mean; 1 without a divided vocabulary.
  double busiest_classes = 1;
  std::optional<double> busiest_candidates;
  std::string corpus_problem;  // why there are no candidates of real text
  std::string layout_warning;
  std::optional<Hardware> hardware;
  std::vector<PredictedStage> stages;  // with a machine
  std::vector<std::string> does_not_fit;

  std::string ToText() const;
  std::string ToJson() const;  // one object, indented
};

// Errors: a layout that does not fit (trainer/layout.h), ranks that do not fill whole nodes.
absl::StatusOr<RanksPlan> PlanRanks(LoadedConfig loaded, const RanksOptions& options);

}  // namespace overtok

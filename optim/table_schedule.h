// What silent steps do to rows of hashed tables: sums and powers by step, a pure function of
// (configuration, steps of the run, step), so that a resumed run replays the same bits. Derivation:
// docs/methods/table_optimizers.md.
#pragma once

#include <cstdint>

#include "core/memory.h"
#include "core/ops/table.h"
#include "core/parameter.h"
#include "optim/config.h"

namespace overtok {

// What tables have to keep under this configuration.
TableStorage StorageOf(const OptimizerConfig& config);

class TableSchedule {
 public:
  // For a run of `steps`; O(steps) memory and a pass over it.
  TableSchedule(const OptimizerConfig& config, int64_t steps, Memory* memory);

  TableRule rule() const;
  // Rate of the tables at a step: adam_lr * tables.lr_scale * schedule.
  double Rate(int64_t step) const;
  // Factors that bring rows to the state before `step`, 0 <= step <= steps. Valid until the next
  // call; going back is allowed and costs a full pass.
  const TableReplay& At(int64_t step);
};

}  // namespace overtok

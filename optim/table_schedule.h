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

// What tables have to keep under this configuration, and where.
TableStorage StorageOf(const OptimizerConfig& config);

class TableSchedule {
 public:
  // For a run of `steps`; takes 15 f64 a step, and a pass over them.
  TableSchedule(const OptimizerConfig& config, int64_t steps, Memory* memory);

  TableRule rule() const;
  // Rate of the tables at a step: adam_lr * tables.lr_scale * schedule.
  double Rate(int64_t step) const;
  // Factors that bring rows to the state before `step`, 0 <= step <= steps; inputs
  // (core/context.h), so that ops read them through OnDevice once they were sent. Valid until the
  // next call. The next step costs a pass over the window of steps that still move a row (the whole
  // run under untouched_decay); a jump ahead costs a window for each step passed over.
  const TableReplay& At(int64_t step);

 private:
  // Sums over silent steps i of rate_i rho^j sqrt(c2_i) / c1_i e_i^k, k = 0..3, with e_i for
  // sqrt(v) = eps, each times the decays after step i; and the product of all decays.
  struct Sums {
    double moved[4] = {};
    double kept = 1;
  };
  Sums Before(const Sums& later, int64_t i) const;  // the sums with step i in front
  void Write(int64_t last, const double* moved, double kept);
  bool moves() const { return rule_.beta1 != 0; }

  OptimizerConfig config_;
  int64_t steps_;
  TableRule rule_;
  double rho_ = 0;
  bool series_ = false;  // the sums converge: rho < 1
  TableReplay replay_;
  Tensor rates_;  // [N]
  // Sums over a whole window from each step on, [N + 1, 4]: entries [0, finals_) are known, and
  // those below written_ stand in replay_.
  Tensor final_;
  int64_t finals_ = 0, written_ = 0;
};

}  // namespace overtok

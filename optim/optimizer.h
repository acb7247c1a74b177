// The optimizer of all groups: clipping by each group's own norm, MuonH on matrices, AdamH on
// heads, Adam on the rest (docs/optimizers.md), touched rows of tables
// (docs/methods/table_optimizers.md). Its state is named and enumerable, so that checkpoints need
// to know nothing about it.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "optim/config.h"
#include "optim/muonh.h"
#include "optim/table_schedule.h"

namespace overtok {

class Optimizer {
 public:
  // For a run of `steps`. `seed`: of the stochastic rounding of bf16 tables.
  Optimizer(const OptimizerConfig& config, int64_t steps, uint64_t seed, ParameterSet* parameters,
            Memory* memory);

  // Brings the touched rows of every table to the state before `step`. Call when the model has
  // named them and before it reads them.
  void CatchUp(const Context& context, int64_t step);

  // Norms of the gradients by group, before clipping; call once per step, before Step. The values
  // are read on the host: all of them finite is the guard that a step may be taken. Tables count
  // with their touched rows, frozen ones not at all.
  void ComputeNorms(const Context& context, int64_t step);
  double norm(OptimizerGroup group) const;  // L2; 0 for a group without parameters
  double total_norm() const;                // over all groups

  // The update of training step `step` (from 0) with the schedule's multiplier at that step.
  // Gradients are left as they are. Touched rows of tables must have been caught up to `step`; at a
  // frozen step a table is left alone, and the next CatchUp counts the step as silent.
  void Step(const Context& context, int64_t step, double lr_scale);

  // "muonh.momentum/<parameter>", "adamh.m/<parameter>", "adam.v/<parameter>", "table.m/...", ...
  const std::vector<NamedState>& state() const { return state_; }

  // What brings rows of tables to a step, for reading them elsewhere (TableLookup). A model without
  // tables has none.
  TableSchedule& tables();

 private:
  struct Moments {
    Parameter* parameter;
    Tensor m, v;
  };
  struct Table {
    Parameter* parameter;
    uint64_t random_key;
  };
  bool Frozen(const Parameter& table, int64_t step) const;

  OptimizerConfig config_;
  ParameterSet* parameters_;
  std::unique_ptr<TableSchedule> schedule_;
  Tensor norms_squared_;  // [groups] f64
  std::unique_ptr<MuonH> muonh_;
  std::vector<Moments> adamh_, adam_;
  std::vector<Table> tables_;
  std::vector<NamedState> state_;
};

}  // namespace overtok

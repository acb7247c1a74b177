// The optimizer of all groups: clipping by each group's own norm, MuonH on matrices, AdamH on
// heads, Adam on the rest (docs/optimizers.md). Its state is named and enumerable, so that
// checkpoints need to know nothing about it.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "optim/config.h"
#include "optim/muonh.h"

namespace overtok {

// One tensor of state: "muonh.momentum/<parameter>", "adamh.m/<parameter>", "adam.v/<parameter>",
// ... f32, logical shape.
struct OptimizerState {
  std::string name;
  Tensor tensor;
};

class Optimizer {
 public:
  Optimizer(const OptimizerConfig& config, ParameterSet* parameters, Memory* memory);

  // Norms of the gradients by group, before clipping; call once per step, before Step. The values
  // are read on the host: all of them finite is the guard that a step may be taken.
  void ComputeNorms(const Context& context);
  double norm(OptimizerGroup group) const;  // L2; 0 for a group without parameters
  double total_norm() const;                // over all groups

  // The update of training step `step` (from 0) with the schedule's multiplier at that step.
  // Gradients are left as they are.
  void Step(const Context& context, int64_t step, double lr_scale);

  const std::vector<OptimizerState>& state() const { return state_; }

 private:
  struct Moments {
    Parameter* parameter;
    Tensor m, v;
  };
  OptimizerConfig config_;
  ParameterSet* parameters_;
  Tensor norms_squared_;  // [groups] f64
  std::unique_ptr<MuonH> muonh_;
  std::vector<Moments> adamh_, adam_;
  std::vector<OptimizerState> state_;
};

}  // namespace overtok

// MuonH, AdamH and Adam with per-group clipping in double, by plain loops over the formulas of
// docs/optimizers.md. Dense and slow. With Newton-Schulz in TF32 operands of its products are
// rounded to it, sums stay in double; bf16 is not imitated.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/parameter.h"
#include "optim/config.h"

namespace overtok::testing {

class ReferenceOptimizer {
 public:
  explicit ReferenceOptimizer(const OptimizerConfig& config) : config_(config) {}

  struct Tensor2d {
    int64_t rows = 0, cols = 0;  // a vector is one row
    OptimizerGroup group = OptimizerGroup::kAdam;
    std::vector<double> value, gradient;
  };
  // One step on all parameters; state is kept by name.
  void Step(std::map<std::string, Tensor2d>* parameters, double lr_scale);
  // Squares of other gradients of a group, which count in its norm at the next step.
  void AddSquares(OptimizerGroup group, double squares) { others_[group] += squares; }
  // Momentum or first moment, and second moment.
  const std::vector<double>& first(const std::string& name) const { return first_.at(name); }
  const std::vector<double>& second(const std::string& name) const { return second_.at(name); }

 private:
  OptimizerConfig config_;
  int64_t t_ = 0;
  std::map<OptimizerGroup, double> others_;
  std::map<std::string, std::vector<double>> first_, second_;
};

}  // namespace overtok::testing

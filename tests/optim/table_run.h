// One table under the optimizer, driven with gradients given by row, and the same table under a
// dense optimizer in double: every row, every step, by plain loops over the formulas of
// docs/methods/table_optimizers.md.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/parameter.h"
#include "optim/optimizer.h"

namespace overtok::testing {

// The rows of one step, ascending, and their gradients row by row.
struct RowGradients {
  std::vector<uint32_t> rows;
  std::vector<float> values;
};

class TableRun {
 public:
  TableRun(const OptimizerConfig& config, int64_t steps, Shape shape, bool freezes = false,
           uint64_t seed = 1);
  // Touched rows are caught up, the norm is taken, the update made.
  void Step(int64_t step, const RowGradients& gradients);
  // All rows as they stand before `step`, by TableLookup.
  std::vector<double> Read(int64_t step);
  // Every byte of value, m, v, last.
  std::vector<char> Bytes() const;
  // Takes over value, m, v and last of another run.
  void Load(const TableRun& other);
  const ParameterSet& parameters() const { return parameters_; }
  Parameter& table() { return parameters_.all().front(); }
  const Parameter& table() const { return parameters_.all().front(); }
  Optimizer& optimizer() { return *optimizer_; }
  const Context& context() const { return context_; }
  std::vector<Tensor> state() const;

 private:
  OptimizerConfig config_;
  int64_t steps_;
  Memory memory_;
  Context context_;
  std::unique_ptr<Communicator> world_;
  Mesh mesh_;
  ParameterSet parameters_;
  std::unique_ptr<Optimizer> optimizer_;
};

class DenseTable {
 public:
  // Starts from the values of `run`.
  DenseTable(const OptimizerConfig& config, int64_t steps, const TableRun& run);
  void Step(int64_t step, const RowGradients& gradients);
  const std::vector<double>& value() const { return value_; }
  // What rounding to f32 can have done to an element so far, in units of 2^-24: the values written,
  // and the way that it would have gone if all its gradients had one sign (sums that cancel keep
  // the errors of their terms).
  double rounding(size_t i) const { return written_[i] + 32 * way_[i]; }

 private:
  OptimizerConfig config_;
  int64_t steps_, rows_, width_;
  std::vector<double> value_, m_, v_, absolute_, written_, way_;
};

}  // namespace overtok::testing

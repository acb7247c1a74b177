// MuonH: momentum, Newton-Schulz orthogonalisation and a step of relative length `rate` that keeps
// each matrix's Frobenius norm (docs/optimizers.md). Matrices of one shape are orthogonalised
// together as a batch of products. One matrix is one (layer, projection) pair.
#pragma once

#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/ops/optimizer.h"
#include "core/parameter.h"
#include "optim/config.h"

namespace overtok {

class MuonH {
 public:
  struct Matrix {
    Parameter* parameter;
    Tensor momentum;  // f32, the parameter's shape; zero before the first step
  };
  MuonH(const OptimizerConfig& config, const std::vector<Parameter*>& parameters, Memory* memory);

  void Step(const Context& context, const Clip& clip, double rate);
  const std::vector<Matrix>& matrices() const { return matrices_; }

 private:
  // Matrices [begin, end) of one shape, orthogonalised together.
  struct Batch {
    size_t begin, end;
  };
  void Orthogonalise(const Context& context, int64_t count, int64_t rows, int64_t cols);
  Tensor Stack(const Tensor& storage, int64_t count, int64_t rows, int64_t cols) const;

  OptimizerConfig config_;
  std::vector<Matrix> matrices_;  // sorted by shape
  std::vector<Batch> batches_;
  Tensor x_, next_;           // stacks of the largest batch, in the Newton-Schulz precision
  Tensor gram_, polynomial_;  // [count, n, n], n the smaller side
  Tensor norms_squared_;      // [largest count] f64
  Tensor current_;            // which of x_, next_ holds the result
};

}  // namespace overtok

// MuonH: momentum, Newton-Schulz orthogonalisation and a step of relative length `rate` that keeps
// each matrix's Frobenius norm (docs/optimizers.md). Matrices of one shape are orthogonalised
// together as a batch of products. One matrix is one (layer, projection) pair, whole, whatever the
// layout.
#pragma once

#include <functional>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/ops/optimizer.h"
#include "core/tensor.h"
#include "optim/config.h"

namespace overtok {

class MuonH {
 public:
  struct Matrix {
    Shape shape;                       // [rows, cols]
    Tensor value, gradient, momentum;  // f32; momentum zero before the first step
  };
  // Which of the matrices are orthogonalised together, in the order of Step: places in `shapes`.
  static std::vector<std::vector<size_t>> Batches(const std::vector<Shape>& shapes,
                                                  NewtonSchulzConfig::Precision precision);

  MuonH(const OptimizerConfig& config, std::vector<Matrix> matrices, Memory* memory);

  // Calls done() after each of Batches(): its values are the new ones.
  void Step(const Context& context, const Clip& clip, double rate,
            const std::function<void()>& done);

 private:
  // Leaves the result in current_.
  void Orthogonalise(const Context& context, int64_t count, int64_t rows, int64_t cols);
  Tensor Stack(const Tensor& storage, int64_t count, int64_t rows, int64_t cols) const;

  OptimizerConfig config_;
  std::vector<Matrix> matrices_;
  std::vector<std::vector<size_t>> batches_;
  Tensor x_, next_;           // stacks of the largest batch, in StorageType of the precision
  Tensor gram_, polynomial_;  // [count, n, n], n the smaller side
  Tensor norms_squared_;      // [largest count] f64
  Tensor current_;            // which of x_, next_ holds the result
};

}  // namespace overtok

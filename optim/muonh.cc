#include "optim/muonh.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/ops/matmul.h"

namespace overtok {
namespace {

// Matrices are orthogonalised together as long as their stack stays below this: small matrices gain
// from batching, large ones fill the machine on their own and would only cost memory.
constexpr int64_t kStackBytes = int64_t{32} << 20;

}  // namespace

MuonH::MuonH(const OptimizerConfig& config, const std::vector<Parameter*>& parameters,
             Memory* memory)
    : config_(config) {
  for (Parameter* parameter : parameters) {
    OT_CHECK(parameter->spec.shape.rank() == 2) << parameter->spec.name << " is no matrix";
    Tensor momentum =
        memory->Take(Purpose::kOptimizer, absl::StrCat("muonh.momentum/", parameter->spec.name),
                     DType::kF32, parameter->spec.shape);
    matrices_.push_back({parameter, momentum});
  }
  std::stable_sort(matrices_.begin(), matrices_.end(), [](const Matrix& x, const Matrix& y) {
    const Shape& a = x.parameter->spec.shape;
    const Shape& b = y.parameter->spec.shape;
    return a[0] != b[0] ? a[0] < b[0] : a[1] < b[1];
  });

  int64_t stack = 0;
  int64_t grams = 0;
  int64_t longest = 0;
  for (size_t begin = 0; begin < matrices_.size();) {
    const Shape& shape = matrices_[begin].parameter->spec.shape;
    const int64_t elements = shape.elements();
    const int64_t limit =
        std::max<int64_t>(1, kStackBytes / (elements * SizeOf(config.newton_schulz.precision)));
    size_t end = begin;
    while (end < matrices_.size() && matrices_[end].parameter->spec.shape == shape &&
           static_cast<int64_t>(end - begin) < limit) {
      ++end;
    }
    batches_.push_back({begin, end});
    const auto count = static_cast<int64_t>(end - begin);
    const int64_t small = std::min(shape[0], shape[1]);
    stack = std::max(stack, count * elements);
    grams = std::max(grams, count * small * small);
    longest = std::max(longest, count);
    memory->NeedScratch(OptimizerScratch(elements));
    begin = end;
  }
  if (matrices_.empty()) return;
  const DType dtype = config.newton_schulz.precision;
  x_ = memory->Take(Purpose::kScratch, "newton_schulz.x", dtype, {stack});
  next_ = memory->Take(Purpose::kScratch, "newton_schulz.next", dtype, {stack});
  gram_ = memory->Take(Purpose::kScratch, "newton_schulz.gram", dtype, {grams});
  polynomial_ = memory->Take(Purpose::kScratch, "newton_schulz.polynomial", dtype, {grams});
  norms_squared_ = memory->Take(Purpose::kScratch, "newton_schulz.norms", DType::kF64, {longest});
}

Tensor MuonH::Stack(const Tensor& storage, int64_t count, int64_t rows, int64_t cols) const {
  return storage.Rows(0, count * rows * cols).Reshape({count, rows, cols});
}

void MuonH::Orthogonalise(const Context& context, int64_t count, int64_t rows, int64_t cols) {
  // X <- (a I + b A + c A A) X with A = X X^T on the smaller side; tall matrices multiply from the
  // right instead, which is the iteration on the transpose without transposing anything.
  const bool tall = rows > cols;
  const int64_t small = std::min(rows, cols);
  const auto& [a, b, c] = config_.newton_schulz.coefficients;
  const Tensor gram = Stack(gram_, count, small, small);
  const Tensor polynomial = Stack(polynomial_, count, small, small);
  Tensor x = Stack(x_, count, rows, cols);
  Tensor next = Stack(next_, count, rows, cols);
  for (int64_t i = 0; i < config_.newton_schulz.steps; ++i) {
    Matmul(context, {.a = x, .b = x, .c = gram, .trans_a = tall, .trans_b = !tall});
    Matmul(context, {.a = gram, .b = gram, .c = polynomial});
    NewtonSchulzPolynomial(context, {.x = gram, .y = polynomial, .a = a, .b = b, .c = c});
    Matmul(context, {.a = tall ? x : polynomial, .b = tall ? polynomial : x, .c = next});
    std::swap(x, next);
  }
  current_ = x;
}

void MuonH::Step(const Context& context, const Clip& clip, double rate) {
  for (const Batch& batch : batches_) {
    const auto count = static_cast<int64_t>(batch.end - batch.begin);
    const Shape& shape = matrices_[batch.begin].parameter->spec.shape;
    const Tensor stack = Stack(x_, count, shape[0], shape[1]);
    for (int64_t i = 0; i < count; ++i) {
      const Matrix& matrix = matrices_[batch.begin + static_cast<size_t>(i)];
      MuonMomentum(context, {.gradient = matrix.parameter->gradient,
                             .buffer = matrix.momentum,
                             .x = stack.Rows(i, 1).Reshape(shape),
                             .norm_squared = norms_squared_.Rows(i, 1),
                             .clip = clip,
                             .momentum = config_.momentum,
                             .nesterov = config_.nesterov});
    }
    ScaleByNorm(context, {stack, norms_squared_.Rows(0, count), config_.newton_schulz.eps});
    Orthogonalise(context, count, shape[0], shape[1]);
    for (int64_t i = 0; i < count; ++i) {
      const Matrix& matrix = matrices_[batch.begin + static_cast<size_t>(i)];
      HyperballUpdate(context, {matrix.parameter->value, current_.Rows(i, 1).Reshape(shape), rate});
    }
  }
}

}  // namespace overtok

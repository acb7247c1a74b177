#include "optim/muonh.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/check.h"
#include "core/ops/matmul.h"

namespace overtok {
namespace {

// Matrices are orthogonalised together as long as their stack stays below this: small matrices gain
// from batching, large ones fill the machine on their own and would only cost memory.
constexpr int64_t kStackBytes = int64_t{32} << 20;

}  // namespace

std::vector<std::vector<size_t>> MuonH::Batches(const std::vector<Shape>& shapes,
                                                NewtonSchulzConfig::Precision precision) {
  const int64_t element = SizeOf(StorageType(precision));
  std::vector<size_t> order(shapes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t x, size_t y) {
    const Shape& a = shapes[x];
    const Shape& b = shapes[y];
    return a[0] != b[0] ? a[0] < b[0] : a[1] < b[1];
  });
  std::vector<std::vector<size_t>> batches;
  for (const size_t matrix : order) {
    const Shape& shape = shapes[matrix];
    const auto limit =
        static_cast<size_t>(std::max<int64_t>(1, kStackBytes / (shape.elements() * element)));
    const bool joins = !batches.empty() && shapes[batches.back().front()] == shape &&
                       batches.back().size() < limit;
    if (!joins) batches.emplace_back();
    batches.back().push_back(matrix);
  }
  return batches;
}

MuonH::MuonH(const OptimizerConfig& config, std::vector<Matrix> matrices, Memory* memory)
    : config_(config), matrices_(std::move(matrices)) {
  if (matrices_.empty()) return;
  const NewtonSchulzConfig::Precision precision = config.newton_schulz.precision;
  const DType dtype = StorageType(precision);
  std::vector<Shape> shapes;
  for (const Matrix& matrix : matrices_) shapes.push_back(matrix.shape);
  batches_ = Batches(shapes, precision);
  int64_t stack = 0, grams = 0, longest = 0;
  for (const std::vector<size_t>& batch : batches_) {
    const Shape& shape = shapes[batch.front()];
    const auto count = static_cast<int64_t>(batch.size());
    const int64_t small = std::min(shape[0], shape[1]);
    stack = std::max(stack, count * shape.elements());
    grams = std::max(grams, count * small * small);
    longest = std::max(longest, count);
    memory->NeedScratch(OptimizerScratch(shape.elements()));
    // The last product of an iteration has the largest operands.
    if (precision == NewtonSchulzConfig::Precision::kTF32)
      memory->NeedScratch(MatmulScratch(count * shape.elements(), count * small * small));
  }
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
  const bool tf32 = config_.newton_schulz.precision == NewtonSchulzConfig::Precision::kTF32;
  const Tensor gram = Stack(gram_, count, small, small);
  const Tensor polynomial = Stack(polynomial_, count, small, small);
  Tensor x = Stack(x_, count, rows, cols);
  Tensor next = Stack(next_, count, rows, cols);
  for (int64_t i = 0; i < config_.newton_schulz.steps; ++i) {
    Matmul(context, {.a = x, .b = x, .c = gram, .trans_a = tall, .trans_b = !tall, .tf32 = tf32});
    Matmul(context, {.a = gram, .b = gram, .c = polynomial, .tf32 = tf32});
    NewtonSchulzPolynomial(context, {.x = gram, .y = polynomial, .a = a, .b = b, .c = c});
    Matmul(context,
           {.a = tall ? x : polynomial, .b = tall ? polynomial : x, .c = next, .tf32 = tf32});
    std::swap(x, next);
  }
  current_ = x;
}

void MuonH::Step(const Context& context, const Clip& clip, double rate,
                 const std::function<void()>& done) {
  for (const std::vector<size_t>& batch : batches_) {
    const auto count = static_cast<int64_t>(batch.size());
    const Shape& shape = matrices_[batch.front()].shape;
    const Tensor stack = Stack(x_, count, shape[0], shape[1]);
    for (int64_t i = 0; i < count; ++i) {
      const Matrix& matrix = matrices_[batch[static_cast<size_t>(i)]];
      MuonMomentum(context, {.gradient = matrix.gradient,
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
      const Matrix& matrix = matrices_[batch[static_cast<size_t>(i)]];
      HyperballUpdate(context, {.w = matrix.value,
                                .u = current_.Rows(i, 1).Reshape(shape),
                                .rate = rate,
                                .halted = clip.halted});
    }
    done();
  }
}

}  // namespace overtok

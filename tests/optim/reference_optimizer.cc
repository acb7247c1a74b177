#include "tests/optim/reference_optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/tf32.h"

namespace overtok::testing {
namespace {

using Vector = std::vector<double>;

double Norm(const Vector& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

// [n, k] x [k, m]
Vector Product(Vector a, Vector b, int64_t n, int64_t k, int64_t m, bool tf32) {
  if (tf32) {
    for (Vector* x : {&a, &b})
      for (double& v : *x) v = static_cast<double>(ToTF32(static_cast<float>(v)));
  }
  Vector c(static_cast<size_t>(n * m), 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t j = 0; j < m; ++j) {
        c[static_cast<size_t>(i * m + j)] +=
            a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * m + j)];
      }
    }
  }
  return c;
}

Vector Transpose(const Vector& a, int64_t rows, int64_t cols) {
  Vector t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j)
      t[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * cols + j)];
  }
  return t;
}

// Always transposes tall matrices, as the formula is stated; the code under test multiplies from
// the right instead.
Vector NewtonSchulz(Vector x, int64_t rows, int64_t cols, const NewtonSchulzConfig& config) {
  const double norm = Norm(x);
  for (double& v : x) v /= norm + config.eps;
  const bool tall = rows > cols;
  if (tall) x = Transpose(x, rows, cols);
  const int64_t n = std::min(rows, cols);
  const int64_t m = std::max(rows, cols);
  const bool tf32 = config.precision == NewtonSchulzConfig::Precision::kTF32;
  for (int64_t step = 0; step < config.steps; ++step) {
    const Vector gram = Product(x, Transpose(x, n, m), n, m, n, tf32);
    const Vector square = Product(gram, gram, n, n, n, tf32);
    Vector factor(gram.size());
    for (size_t i = 0; i < factor.size(); ++i) {
      factor[i] = config.coefficients[1] * gram[i] + config.coefficients[2] * square[i];
    }
    for (int64_t i = 0; i < n; ++i)
      factor[static_cast<size_t>(i * n + i)] += config.coefficients[0];
    x = Product(factor, x, n, n, m, tf32);
  }
  return tall ? Transpose(x, n, m) : x;
}

void Hyperball(const Vector& u, double rate, Vector* w) {
  const double radius = Norm(*w);
  const double length = std::max(Norm(u), 1e-10);
  for (size_t i = 0; i < u.size(); ++i) (*w)[i] -= rate * radius * u[i] / length;
  const double moved = std::max(Norm(*w), 1e-10);
  for (double& v : *w) v *= radius / moved;
}

}  // namespace

void ReferenceOptimizer::Step(std::map<std::string, Tensor2d>* parameters, double lr_scale) {
  ++t_;
  std::map<OptimizerGroup, double> squares;
  squares.swap(others_);
  for (const auto& [name, p] : *parameters) squares[p.group] += Norm(p.gradient) * Norm(p.gradient);
  for (auto& [name, p] : *parameters) {
    const double norm = std::sqrt(squares[p.group]);
    const double factor = norm > 0 ? std::min(1.0, config_.max_grad_norm / norm) : 1.0;
    Vector g = p.gradient;
    for (double& v : g) v *= factor;
    Vector& first = first_[name];
    Vector& second = second_[name];
    first.resize(g.size(), 0.0);
    second.resize(g.size(), 0.0);
    Vector u(g.size());
    if (p.group == OptimizerGroup::kMuonH) {
      for (size_t i = 0; i < g.size(); ++i) {
        first[i] = config_.momentum * first[i] + g[i];
        u[i] = config_.nesterov ? g[i] + config_.momentum * first[i] : first[i];
      }
      Hyperball(NewtonSchulz(u, p.rows, p.cols, config_.newton_schulz), config_.lr * lr_scale,
                &p.value);
      continue;
    }
    const double c1 = 1 - std::pow(config_.beta1, static_cast<double>(t_));
    const double c2 = 1 - std::pow(config_.beta2, static_cast<double>(t_));
    for (size_t i = 0; i < g.size(); ++i) {
      first[i] = config_.beta1 * first[i] + (1 - config_.beta1) * g[i];
      second[i] = config_.beta2 * second[i] + (1 - config_.beta2) * g[i] * g[i];
      u[i] = (first[i] / c1) / (std::sqrt(second[i] / c2) + config_.eps);
    }
    if (p.group == OptimizerGroup::kAdamH) {
      Hyperball(u, config_.lr * lr_scale, &p.value);
    } else {
      for (size_t i = 0; i < g.size(); ++i) p.value[i] -= config_.adam_lr * lr_scale * u[i];
    }
  }
}

}  // namespace overtok::testing

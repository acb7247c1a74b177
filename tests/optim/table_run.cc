#include "tests/optim/table_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "optim/schedule.h"

namespace overtok::testing {

TableRun::TableRun(const OptimizerConfig& config, int64_t steps, Shape shape, bool freezes,
                   uint64_t seed)
    : config_(config),
      steps_(steps),
      memory_(Memory::Mode::kReal),
      context_(CpuContext()),
      world_(OneRank()),
      mesh_(world_.get(), 1),
      parameters_(&memory_, DType::kF32, true, StorageOf(config)) {
  parameters_.Add({.name = "table",
                   .shape = shape,
                   .placement = Placement::kReplicated,
                   .group = OptimizerGroup::kAdam,
                   .initializer = Initializer::kNormal,
                   .scale = 0.05,
                   .update = UpdateKind::kTable,
                   .touched_capacity = shape[0],
                   .freezes = freezes},
                  false);
  optimizer_ = std::make_unique<Optimizer>(config, steps, seed, &parameters_,
                                           std::vector<Parameter*>(), &mesh_, &memory_);
  memory_.Commit(&context_);
  parameters_.Initialize(7);
}

void TableRun::Step(int64_t step, const RowGradients& gradients) {
  TouchedRows& touched = table().touched;
  touched.count = static_cast<int64_t>(gradients.rows.size());
  std::copy(gradients.rows.begin(), gradients.rows.end(), touched.rows.data<uint32_t>());
  table().owned = touched;
  optimizer_->BeginStep(step);
  optimizer_->CatchUp(context_);
  std::copy(gradients.values.begin(), gradients.values.end(), touched.gradient.data<float>());
  optimizer_->ComputeNorms(context_, step, {});
  optimizer_->Step(context_, step, LrScale(config_.schedule, steps_, step));
}

std::vector<double> TableRun::Read(int64_t step) {
  const TableState& state = table().table;
  std::vector<uint32_t> ids(static_cast<size_t>(state.value.dim(0)));
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> y(static_cast<size_t>(state.value.elements()));
  TableSchedule& schedule = optimizer_->tables();
  TableLookup(context_, {.state = state,
                         .rule = schedule.rule(),
                         .replay = schedule.At(step),
                         .ids = Tensor(ids.data(), {state.value.dim(0)}),
                         .y = Tensor(y.data(), state.value.shape())});
  return {y.begin(), y.end()};
}

std::vector<Tensor> TableRun::state() const {
  std::vector<Tensor> tensors;
  const TableState& state = table().table;
  for (const Tensor& tensor : {state.value, state.m, state.v, state.last})
    if (tensor.defined()) tensors.push_back(tensor);
  return tensors;
}

std::vector<char> TableRun::Bytes() const {
  std::vector<char> bytes;
  for (const Tensor& tensor : state()) {
    const char* begin = static_cast<const char*>(tensor.raw());
    bytes.insert(bytes.end(), begin, begin + tensor.bytes());
  }
  return bytes;
}

void TableRun::Load(const TableRun& other) {
  const std::vector<Tensor> from = other.state(), to = state();
  for (size_t i = 0; i < to.size(); ++i)
    std::memcpy(to[i].raw(), from[i].raw(), static_cast<size_t>(to[i].bytes()));
}

DenseTable::DenseTable(const OptimizerConfig& config, int64_t steps, const TableRun& run)
    : config_(config),
      steps_(steps),
      rows_(run.table().value.dim(0)),
      width_(run.table().value.dim(1)) {
  const Tensor& value = run.table().value;
  const auto n = static_cast<size_t>(value.elements());
  for (size_t i = 0; i < n; ++i) {
    value_.push_back(value.dtype() == DType::kBF16
                         ? static_cast<double>(static_cast<float>(value.data<bf16>()[i]))
                         : value.data<float>()[i]);
  }
  m_.assign(n, 0);
  v_ = absolute_ = written_ = way_ = m_;
}

void DenseTable::Step(int64_t step, const RowGradients& gradients) {
  const TablesConfig& tables = config_.tables;
  const bool adam = tables.update == TablesConfig::Update::kExact;
  const bool sgd = tables.update == TablesConfig::Update::kSgd;
  const double rate = config_.adam_lr * tables.lr_scale * LrScale(config_.schedule, steps_, step);
  const double beta1 = adam ? tables.beta1 : 0, beta2 = config_.beta2;
  const auto t = static_cast<double>(step + 1);
  const double c1 = 1 - std::pow(beta1, t), c2 = 1 - std::pow(beta2, t);

  std::vector<double> g(value_.size(), 0.0);
  std::vector<bool> touched(static_cast<size_t>(rows_), false);
  double squares = 0;
  for (const float x : gradients.values) squares += static_cast<double>(x) * x;
  const double norm = std::sqrt(squares);
  const double clip = norm > config_.max_grad_norm ? config_.max_grad_norm / norm : 1;
  const auto width = static_cast<size_t>(width_);
  for (size_t k = 0; k < gradients.rows.size(); ++k) {
    const size_t row = gradients.rows[k];
    touched[row] = true;
    for (size_t c = 0; c < width; ++c)
      g[row * width + c] = clip * static_cast<double>(gradients.values[k * width + c]);
  }
  for (size_t row = 0; row < touched.size(); ++row) {
    double mean = 0;
    for (size_t c = 0; c < width; ++c)
      mean += g[row * width + c] * g[row * width + c] / static_cast<double>(width);
    for (size_t i = row * width; i < (row + 1) * width; ++i) {
      const double square =
          tables.second_moment == TablesConfig::SecondMoment::kRow ? mean : g[i] * g[i];
      const double before = std::abs(value_[i]);
      if (!touched[row]) value_[i] *= 1 - rate * tables.untouched_decay;
      double divisor = 1;
      if (adam) {
        v_[i] = beta2 * v_[i] + (1 - beta2) * square;
        divisor = std::sqrt(v_[i] / c2) + config_.eps;
      } else if (!sgd) {
        v_[i] += square;
        divisor = std::sqrt(v_[i]) + config_.eps;
      }
      m_[i] = beta1 * m_[i] + (1 - beta1) * g[i];
      absolute_[i] = beta1 * absolute_[i] + (1 - beta1) * std::abs(g[i]);
      if (absolute_[i] == 0) continue;  // 0 / (0 + eps)
      value_[i] -= rate * m_[i] / c1 / divisor;
      way_[i] += rate * absolute_[i] / c1 / divisor;
      // The replay and the update each write the value; the decay is rounded, and its product.
      const double writes = tables.untouched_decay == 0 ? 2 : 4;
      if (touched[row]) written_[i] += writes * std::max(std::abs(value_[i]), before);
    }
  }
}

}  // namespace overtok::testing

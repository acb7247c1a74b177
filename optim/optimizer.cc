#include "optim/optimizer.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/io/hash.h"
#include "core/ops/optimizer.h"
#include "core/ops/table.h"

namespace overtok {
namespace {

AdamConstants Constants(double beta1, double beta2, double eps, int64_t step) {
  const auto t = static_cast<double>(step + 1);
  return {.beta1 = beta1,
          .beta2 = beta2,
          .eps = eps,
          .correction1 = 1.0 - std::pow(beta1, t),
          .correction2 = 1.0 - std::pow(beta2, t)};
}

}  // namespace

Optimizer::Optimizer(const OptimizerConfig& config, int64_t steps, uint64_t seed,
                     ParameterSet* parameters, Memory* memory)
    : config_(config), parameters_(parameters) {
  norms_squared_ = memory->Take(Purpose::kOptimizer, "norms", DType::kF64, {kOptimizerGroups});
  std::vector<Parameter*> matrices;
  for (Parameter& parameter : parameters->all()) {
    if (parameter.spec.group == OptimizerGroup::kMuonH) {
      matrices.push_back(&parameter);
      continue;
    }
    if (parameter.is_table()) {
      // Apart from the key of the initial values, which hashes the bare name.
      const std::string name = absl::StrCat("rounding/", parameter.spec.name);
      tables_.push_back({&parameter, Xxh3(name.data(), static_cast<int64_t>(name.size()), seed)});
      memory->NeedScratch(OptimizerScratch(parameter.touched.gradient.elements()));
      continue;
    }
    const std::string group = NameOf(parameter.spec.group);
    Moments moments{&parameter, Tensor(), Tensor()};
    const std::string m_name = absl::StrCat(group, ".m/", parameter.spec.name);
    const std::string v_name = absl::StrCat(group, ".v/", parameter.spec.name);
    moments.m = memory->Take(Purpose::kOptimizer, m_name, DType::kF32, parameter.spec.shape);
    moments.v = memory->Take(Purpose::kOptimizer, v_name, DType::kF32, parameter.spec.shape);
    state_.push_back({m_name, moments.m});
    state_.push_back({v_name, moments.v});
    (parameter.spec.group == OptimizerGroup::kAdamH ? adamh_ : adam_).push_back(moments);
    memory->NeedScratch(OptimizerScratch(parameter.spec.shape.elements()));
  }
  muonh_ = std::make_unique<MuonH>(config, matrices, memory);
  for (const MuonH::Matrix& matrix : muonh_->matrices()) {
    state_.push_back(
        {absl::StrCat("muonh.momentum/", matrix.parameter->spec.name), matrix.momentum});
  }
  if (!tables_.empty()) schedule_ = std::make_unique<TableSchedule>(config, steps, memory);
  for (const NamedState& state : parameters->table_states()) state_.push_back(state);
}

TableSchedule& Optimizer::tables() {
  OT_CHECK(schedule_ != nullptr) << "the model has no tables";
  return *schedule_;
}

bool Optimizer::Frozen(const Parameter& table, int64_t step) const {
  const int64_t freeze = config_.tables.freeze_step;
  return table.spec.freezes && freeze > 0 && step >= freeze;
}

void Optimizer::CatchUp(const Context& context, int64_t step) {
  if (tables_.empty()) return;
  const TableReplay& replay = schedule_->At(step);
  for (const Table& table : tables_) {
    TableReplayRows(context, {.state = table.parameter->table,
                              .rule = schedule_->rule(),
                              .replay = replay,
                              .rows = table.parameter->touched.used(),
                              .random_key = table.random_key});
  }
}

void Optimizer::ComputeNorms(const Context& context, int64_t step) {
  std::array<bool, kOptimizerGroups> started{};
  double* squares = norms_squared_.data<double>();
  for (int g = 0; g < kOptimizerGroups; ++g) squares[g] = 0;
  for (const Parameter& parameter : parameters_->all()) {
    const auto g = static_cast<size_t>(parameter.spec.group);
    if (parameter.is_table() && Frozen(parameter, step)) continue;
    const Tensor gradient =
        parameter.is_table() ? parameter.touched.used_gradient() : parameter.gradient;
    SumSquares(context, {gradient, norms_squared_.Rows(static_cast<int64_t>(g), 1), started[g]});
    started[g] = true;
  }
}

double Optimizer::norm(OptimizerGroup group) const {
  return std::sqrt(norms_squared_.data<double>()[static_cast<int>(group)]);
}

double Optimizer::total_norm() const {
  double sum = 0;
  for (int g = 0; g < kOptimizerGroups; ++g) sum += norms_squared_.data<double>()[g];
  return std::sqrt(sum);
}

void Optimizer::Step(const Context& context, int64_t step, double lr_scale) {
  const auto clip = [&](OptimizerGroup group) {
    return Clip{norms_squared_.Rows(static_cast<int64_t>(group), 1), config_.max_grad_norm};
  };
  const AdamConstants constants = Constants(config_.beta1, config_.beta2, config_.eps, step);

  muonh_->Step(context, clip(OptimizerGroup::kMuonH), config_.lr * lr_scale);
  for (const Moments& moments : adamh_) {
    AdamHUpdate(context, {.w = moments.parameter->value,
                          .gradient = moments.parameter->gradient,
                          .m = moments.m,
                          .v = moments.v,
                          .clip = clip(OptimizerGroup::kAdamH),
                          .constants = constants,
                          .rate = config_.lr * lr_scale});
  }
  for (const Moments& moments : adam_) {
    AdamUpdate(context, {.w = moments.parameter->value,
                         .gradient = moments.parameter->gradient,
                         .m = moments.m,
                         .v = moments.v,
                         .clip = clip(OptimizerGroup::kAdam),
                         .constants = constants,
                         .rate = config_.adam_lr * lr_scale});
  }
  for (const Table& table : tables_) {
    if (Frozen(*table.parameter, step)) continue;
    const TableRule rule = schedule_->rule();
    TableUpdate(context, {.state = table.parameter->table,
                          .rule = rule,
                          .rows = table.parameter->touched.used(),
                          .gradient = table.parameter->touched.used_gradient(),
                          .clip = clip(OptimizerGroup::kAdam),
                          .constants = Constants(rule.beta1, rule.beta2, rule.eps, step),
                          .rate = config_.adam_lr * config_.tables.lr_scale * lr_scale,
                          .step = step,
                          .random_key = table.random_key});
  }
}

}  // namespace overtok

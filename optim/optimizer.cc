#include "optim/optimizer.h"

#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/ops/optimizer.h"

namespace overtok {

Optimizer::Optimizer(const OptimizerConfig& config, ParameterSet* parameters, Memory* memory)
    : config_(config), parameters_(parameters) {
  norms_squared_ = memory->Take(Purpose::kOptimizer, "norms", DType::kF64, {kOptimizerGroups});
  std::vector<Parameter*> matrices;
  for (Parameter& parameter : parameters->all()) {
    if (parameter.spec.group == OptimizerGroup::kMuonH) {
      matrices.push_back(&parameter);
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
}

void Optimizer::ComputeNorms(const Context& context) {
  std::array<bool, kOptimizerGroups> started{};
  double* squares = norms_squared_.data<double>();
  for (int g = 0; g < kOptimizerGroups; ++g) squares[g] = 0;
  for (const Parameter& parameter : parameters_->all()) {
    const auto g = static_cast<size_t>(parameter.spec.group);
    SumSquares(context,
               {parameter.gradient, norms_squared_.Rows(static_cast<int64_t>(g), 1), started[g]});
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
  const auto t = static_cast<double>(step + 1);
  AdamConstants constants;
  constants.beta1 = config_.beta1;
  constants.beta2 = config_.beta2;
  constants.eps = config_.eps;
  constants.correction1 = 1.0 - std::pow(config_.beta1, t);
  constants.correction2 = 1.0 - std::pow(config_.beta2, t);

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
}

}  // namespace overtok

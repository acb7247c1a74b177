#include "core/parameter.h"

#include <utility>

#include "core/check.h"
#include "core/io/hash.h"
#include "core/ops/elementwise.h"
#include "core/rng.h"

namespace overtok {

const char* NameOf(OptimizerGroup group) {
  switch (group) {
    case OptimizerGroup::kMuonH:
      return "muonh";
    case OptimizerGroup::kAdamH:
      return "adamh";
    case OptimizerGroup::kAdam:
      return "adam";
  }
  return "unknown";
}

Parameter& ParameterSet::Add(ParameterSpec spec, bool matrix_product) {
  OT_CHECK(Find(spec.name) == nullptr) << "two parameters named " << spec.name;
  Parameter parameter;
  parameter.value = memory_->Take(Purpose::kParameters, spec.name, DType::kF32, spec.shape);
  if (with_gradients_) {
    parameter.gradient = memory_->Take(Purpose::kGradients, spec.name, DType::kF32, spec.shape);
  }
  parameter.compute = parameter.value;
  if (matrix_product && compute_ == DType::kBF16) {
    parameter.compute = memory_->Take(Purpose::kComputeCopies, spec.name, DType::kBF16, spec.shape);
  }
  parameter.spec = std::move(spec);
  return parameters_.emplace_back(std::move(parameter));
}

Parameter* ParameterSet::Find(absl::string_view name) {
  for (Parameter& parameter : parameters_) {
    if (parameter.spec.name == name) return &parameter;
  }
  return nullptr;
}

int64_t ParameterSet::elements() const {
  int64_t sum = 0;
  for (const Parameter& parameter : parameters_) sum += parameter.spec.shape.elements();
  return sum;
}

void ParameterSet::Initialize(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    if (parameter.spec.initializer == Initializer::kOnes) {
      float* x = parameter.value.data<float>();
      for (int64_t i = 0; i < parameter.value.elements(); ++i) x[i] = 1.0F;
      continue;
    }
    const uint64_t key =
        Xxh3(parameter.spec.name.data(), static_cast<int64_t>(parameter.spec.name.size()), seed);
    FillTruncatedNormal(key, 0, static_cast<float>(parameter.spec.scale), parameter.value);
  }
}

void ParameterSet::RefreshComputeCopies(const Context& context) {
  for (Parameter& parameter : parameters_) {
    if (parameter.compute.raw() != parameter.value.raw())
      Cast(context, {parameter.value, parameter.compute});
  }
}

void ParameterSet::StartGradients() {
  for (Parameter& parameter : parameters_) parameter.gradient_written = false;
}

}  // namespace overtok

#include "core/parameter.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/bf16.h"
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
  const bool table = spec.update == UpdateKind::kTable;
  parameter.value = memory_->Take(Purpose::kParameters, spec.name,
                                  table ? tables_.value : DType::kF32, spec.shape);
  if (table) {
    OT_CHECK(!matrix_product) << spec.name << ": products read gathered rows, never a table";
    TakeTable(spec, &parameter);
  } else if (with_gradients_) {
    parameter.gradient = memory_->Take(Purpose::kGradients, spec.name, DType::kF32, spec.shape);
  }
  parameter.compute = parameter.value;
  if (matrix_product && compute_ == DType::kBF16) {
    parameter.compute = memory_->Take(Purpose::kComputeCopies, spec.name, DType::kBF16, spec.shape);
  }
  parameter.spec = std::move(spec);
  return parameters_.emplace_back(std::move(parameter));
}

void ParameterSet::TakeTable(const ParameterSpec& spec, Parameter* parameter) {
  const int64_t rows = spec.shape[0];
  OT_CHECK(spec.group == OptimizerGroup::kAdam && spec.shape.rank() == 2 &&
           rows < int64_t{1} << 32);
  const auto take = [&](const char* name, DType dtype, Shape shape) {
    return memory_->Take(Purpose::kOptimizer, absl::StrCat(name, spec.name), dtype, shape);
  };
  TableState& state = parameter->table;
  state.value = parameter->value;
  if (tables_.first_moment) state.m = take("table.m/", DType::kF32, spec.shape);
  if (tables_.second_moment == TableStorage::SecondMoment::kElement) {
    state.v = take("table.v/", DType::kF32, spec.shape);
  } else if (tables_.second_moment == TableStorage::SecondMoment::kRow) {
    state.v = take("table.v/", DType::kF32, {rows});
  }
  if (tables_.last_step) state.last = take("table.last/", DType::kU32, {rows});
  if (!with_gradients_) return;
  const int64_t capacity = std::min(rows, spec.touched_capacity);
  OT_CHECK_GE(capacity, 1);
  parameter->touched.rows =
      memory_->Take(Purpose::kGradients, absl::StrCat(spec.name, ".rows"), DType::kU32, {capacity});
  parameter->touched.gradient =
      memory_->Take(Purpose::kGradients, spec.name, DType::kF32, {capacity, spec.shape[1]});
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

std::vector<NamedState> ParameterSet::table_states() const {
  std::vector<NamedState> states;
  for (const Parameter& parameter : parameters_) {
    const auto add = [&](const char* name, const Tensor& tensor) {
      if (tensor.defined()) states.push_back({absl::StrCat(name, parameter.spec.name), tensor});
    };
    add("table.m/", parameter.table.m);
    add("table.v/", parameter.table.v);
    add("table.last/", parameter.table.last);
  }
  return states;
}

void ParameterSet::ReinitializeTable(Parameter& parameter, uint64_t seed, int64_t pass,
                                     int64_t step) {
  OT_CHECK(parameter.is_table());
  Draw(parameter, Xxh3(&pass, sizeof(pass), seed));
  const TableState& state = parameter.table;
  if (state.m.defined()) std::fill_n(state.m.data<float>(), state.m.elements(), 0.0F);
  if (state.v.defined()) std::fill_n(state.v.data<float>(), state.v.elements(), 0.0F);
  if (state.last.defined()) {
    std::fill_n(state.last.data<uint32_t>(), state.last.elements(), static_cast<uint32_t>(step));
  }
}

// A bf16 table's initial values are rounded to nearest.
void ParameterSet::Draw(Parameter& parameter, uint64_t seed) {
  const uint64_t key =
      Xxh3(parameter.spec.name.data(), static_cast<int64_t>(parameter.spec.name.size()), seed);
  const auto scale = static_cast<float>(parameter.spec.scale);
  if (parameter.value.dtype() == DType::kF32) {
    FillTruncatedNormal(key, 0, scale, parameter.value);
    return;
  }
  constexpr int64_t kChunk = 1 << 16;
  std::vector<float> chunk(kChunk);
  auto* out = parameter.value.data<bf16>();
  for (int64_t i = 0; i < parameter.value.elements(); i += kChunk) {
    const int64_t count = std::min(kChunk, parameter.value.elements() - i);
    FillTruncatedNormal(key, i, scale, Tensor(chunk.data(), {count}));
    for (int64_t j = 0; j < count; ++j) out[i + j] = bf16(chunk[static_cast<size_t>(j)]);
  }
}

void ParameterSet::Initialize(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    if (parameter.spec.initializer == Initializer::kOnes) {
      float* x = parameter.value.data<float>();
      for (int64_t i = 0; i < parameter.value.elements(); ++i) x[i] = 1.0F;
      continue;
    }
    Draw(parameter, seed);
  }
}

void ParameterSet::RefreshComputeCopies(const Context& context, Copies copies) {
  for (Parameter& parameter : parameters_) {
    if (copies == Copies::kNeeded && !parameter.compute_needed) continue;
    if (parameter.compute.raw() != parameter.value.raw())
      Cast(context, {parameter.value, parameter.compute});
  }
}

void ParameterSet::StartGradients() {
  for (Parameter& parameter : parameters_) {
    parameter.gradient_written = false;
    parameter.compute_needed = true;
    parameter.touched.count = 0;
  }
}

}  // namespace overtok

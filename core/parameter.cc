#include "core/parameter.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/bf16.h"
#include "core/check.h"
#include "core/io/hash.h"
#include "core/ops/elementwise.h"
#include "core/rng.h"

namespace overtok {
namespace {

// Elements that pass through host memory at once on their way to a device.
constexpr int64_t kPiece = int64_t{1} << 18;

// tensor <- tensor.bytes() of host memory.
void Store(const void* from, const Tensor& tensor, Device* device) {
  if (device == nullptr) {
    std::memcpy(tensor.raw(), from, static_cast<size_t>(tensor.bytes()));
    return;
  }
  const Device::Piece piece = {tensor.raw(), from, tensor.bytes()};
  device->Send({&piece, 1}, StreamName::kMain);
}

template <class T>
void SetAll(const Tensor& tensor, T value, Device* device) {
  if (device == nullptr) {
    std::fill_n(tensor.data<T>(), tensor.elements(), value);
    return;
  }
  const std::vector<T> values(static_cast<size_t>(std::min(kPiece, tensor.elements())), value);
  const Tensor flat = tensor.Reshape({tensor.elements()});
  for (int64_t i = 0; i < flat.elements(); i += kPiece)
    Store(values.data(), flat.Rows(i, std::min(kPiece, flat.elements() - i)), device);
}

}  // namespace

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

Sharding ShardingOf(const ParameterSpec& spec, const Layout& layout) {
  Sharding sharding;
  switch (spec.placement) {
    case Placement::kReplicated:
      return sharding;
    case Placement::kTensorRows:
    case Placement::kTensorColumns: {
      const bool rows = spec.placement == Placement::kTensorRows;
      const int64_t tensor = layout.tensor, groups = spec.groups;
      OT_CHECK(groups == 0 || groups % tensor == 0 || tensor % groups == 0)
          << spec.name << ": " << groups << " groups over " << tensor << " ranks";
      sharding.split = rows ? Split::kRows : Split::kColumns;
      sharding.parts = groups > 0 ? std::min(groups, tensor) : tensor;
      sharding.part = layout.tensor_rank / (tensor / sharding.parts);
      if (groups > 0) {
        const int64_t n = spec.shape[rows ? 0 : 1];
        OT_CHECK_EQ(n % groups, 0);
        sharding.unit = n / groups;
      }
      break;
    }
    case Placement::kVocabularyRows:
      sharding.split = layout.vocabulary;
      sharding.parts = layout.tensor;
      sharding.part = layout.tensor_rank;
      break;
    case Placement::kTableRows:
      sharding.split = Split::kScattered;
      sharding.parts = layout.world();
      sharding.part = layout.world_rank();
      break;
  }
  return sharding.parts == 1 ? Sharding() : sharding;
}

int64_t ReplicasOf(const ParameterSpec& spec, const Layout& layout) {
  if (spec.placement == Placement::kTableRows) return 1;
  return layout.tensor / ShardingOf(spec, layout).parts;
}

Parameter& ParameterSet::Add(ParameterSpec spec, bool matrix_product) {
  OT_CHECK(Find(spec.name) == nullptr) << "two parameters named " << spec.name;
  Parameter parameter;
  const bool table = spec.update == UpdateKind::kTable;
  parameter.sharding = ShardingOf(spec, layout_);
  parameter.replicas = ReplicasOf(spec, layout_);
  const Shape shape = LocalShape(parameter.sharding, spec.shape);
  const std::vector<std::string>& in_host_memory = tables_.in_host_memory;
  parameter.in_host_memory =
      table && memory_->device() != nullptr &&
      (tables_.all_in_host_memory ||
       std::find(in_host_memory.begin(), in_host_memory.end(), spec.name) != in_host_memory.end());
  const DType dtype = table ? tables_.value : DType::kF32;
  parameter.value = parameter.in_host_memory
                        ? memory_->TakeOnHost(Purpose::kParameters, spec.name, dtype, shape)
                        : memory_->Take(Purpose::kParameters, spec.name, dtype, shape);
  if (table) {
    OT_CHECK(!matrix_product) << spec.name << ": products read gathered rows, never a table";
    TakeTable(spec, &parameter);
  } else if (with_gradients_) {
    parameter.gradient = memory_->Take(Purpose::kGradients, spec.name, DType::kF32, shape);
  }
  parameter.compute = parameter.value;
  if (matrix_product && compute_ == DType::kBF16) {
    parameter.compute = memory_->Take(Purpose::kComputeCopies, spec.name, DType::kBF16, shape);
  }
  parameter.spec = std::move(spec);
  return parameters_.emplace_back(std::move(parameter));
}

void ParameterSet::TakeTable(const ParameterSpec& spec, Parameter* parameter) {
  const Shape& shape = parameter->value.shape();
  const int64_t rows = shape[0];
  OT_CHECK(spec.group == OptimizerGroup::kAdam && spec.shape.rank() == 2 &&
           spec.shape[0] < int64_t{1} << 32);
  const auto take = [&](const char* name, DType dtype, Shape of) {
    const std::string full = absl::StrCat(name, spec.name);
    return parameter->in_host_memory ? memory_->TakeOnHost(Purpose::kOptimizer, full, dtype, of)
                                     : memory_->Take(Purpose::kOptimizer, full, dtype, of);
  };
  TableState& state = parameter->table;
  state.value = parameter->value;
  state.sharding = parameter->sharding;
  state.logical_rows = spec.shape[0];
  if (tables_.first_moment) state.m = take("table.m/", DType::kF32, shape);
  if (tables_.second_moment == TableStorage::SecondMoment::kElement) {
    state.v = take("table.v/", DType::kF32, shape);
  } else if (tables_.second_moment == TableStorage::SecondMoment::kRow) {
    state.v = take("table.v/", DType::kF32, {rows});
  }
  if (tables_.last_step) state.last = take("table.last/", DType::kU32, {rows});
  if (!with_gradients_) return;
  const int64_t capacity = std::min(spec.shape[0], spec.touched_capacity);
  OT_CHECK_GE(capacity, 1);
  parameter->touched.rows = memory_->TakeInput(
      Purpose::kGradients, absl::StrCat(spec.name, ".rows"), DType::kU32, {capacity});
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

std::vector<ShardedTensor> ParameterSet::values() const {
  std::vector<ShardedTensor> values;
  for (const Parameter& parameter : parameters_) {
    values.push_back({parameter.spec.name, parameter.region(), parameter.value});
  }
  return values;
}

std::vector<ShardedTensor> ParameterSet::table_states() const {
  std::vector<ShardedTensor> states;
  for (const Parameter& parameter : parameters_) {
    const Shape& logical = parameter.spec.shape;
    const auto add = [&](const char* name, const Tensor& tensor) {
      if (!tensor.defined()) return;
      const Shape shape = tensor.rank() == 1 ? Shape{logical[0]} : logical;
      states.push_back({absl::StrCat(name, parameter.spec.name),
                        Region::Part(shape, parameter.sharding), tensor});
    };
    add("table.m/", parameter.table.m);
    add("table.v/", parameter.table.v);
    add("table.last/", parameter.table.last);
  }
  return states;
}

void ParameterSet::ReinitializeTable(Parameter& parameter, uint64_t seed, int64_t pass,
                                     int64_t step) const {
  OT_CHECK(parameter.is_table());
  parameter.Forget();
  Device* device = memory_->device();
  DrawInitialValues(parameter.spec, Xxh3(&pass, sizeof(pass), seed), parameter.region(),
                    parameter.value, device);
  const TableState& state = parameter.table;
  if (state.m.defined()) SetAll<float>(state.m, 0.0F, device);
  if (state.v.defined()) SetAll<float>(state.v, 0.0F, device);
  if (state.last.defined()) SetAll<uint32_t>(state.last, static_cast<uint32_t>(step), device);
}

void DrawInitialValues(const ParameterSpec& spec, uint64_t seed, const Region& region,
                       const Tensor& values, Device* device) {
  OT_CHECK_EQ(values.elements(), region.count);
  if (spec.initializer == Initializer::kOnes) return SetAll<float>(values, 1.0F, device);
  const uint64_t key = Xxh3(spec.name.data(), static_cast<int64_t>(spec.name.size()), seed);
  const auto scale = static_cast<float>(spec.scale);
  if (values.dtype() == DType::kF32 && device == nullptr) {
    auto* out = values.data<float>();
    ForEachRun(region, [&](int64_t logical, int64_t place, int64_t count) {
      FillTruncatedNormal(key, logical, scale, Tensor(out + place, {count}));
    });
    return;
  }
  // Through a piece of host memory: to a device, or to a bf16 table, rounded to nearest.
  std::vector<float> drawn(kPiece);
  std::vector<bf16> rounded(values.dtype() == DType::kBF16 ? kPiece : 0);
  const Tensor flat = values.Reshape({values.elements()});
  ForEachRun(region, [&](int64_t logical, int64_t place, int64_t run) {
    for (int64_t i = 0; i < run; i += kPiece) {
      const int64_t count = std::min(kPiece, run - i);
      FillTruncatedNormal(key, logical + i, scale, Tensor(drawn.data(), {count}));
      const void* from = drawn.data();
      if (!rounded.empty()) {
        std::transform(drawn.begin(), drawn.begin() + count, rounded.begin(),
                       [](float x) { return bf16(x); });
        from = rounded.data();
      }
      Store(from, flat.Rows(place + i, count), device);
    }
  });
}

void ParameterSet::Initialize(uint64_t seed) {
  for (Parameter& parameter : parameters_) {
    parameter.Forget();
    DrawInitialValues(parameter.spec, seed, parameter.region(), parameter.value, memory_->device());
  }
}

void ParameterSet::RefreshComputeCopies(const Context& context, Copies copies) {
  for (Parameter& parameter : parameters_) {
    if (copies == Copies::kNeeded && !parameter.compute_needed) continue;
    if (parameter.compute.raw() != parameter.value.raw())
      Cast(context, {parameter.value, parameter.compute});
  }
}

TableState Parameter::step_table(const Context& context) const {
  if (copies == nullptr) return table;
  TableState state = copies->copies();
  state.numbers = context.OnDevice(owned.rows);
  return state;
}

Tensor Parameter::step_rows(const Context& context) const {
  return copies != nullptr ? copies->places() : context.OnDevice(owned.used());
}

void ParameterSet::BringRows(const Context& context) {
  std::vector<HostTable*> tables;
  for (const Parameter& parameter : parameters_)
    if (parameter.copies != nullptr) tables.push_back(parameter.copies.get());
  HostTable::BringRows(context, tables);
}

void ParameterSet::Settle(const Context& context) const {
  for (const Parameter& parameter : parameters_) parameter.Settle(context);
}

void ParameterSet::Forget() const {
  for (const Parameter& parameter : parameters_) parameter.Forget();
}

void ParameterSet::StartStep() {
  for (Parameter& parameter : parameters_) {
    parameter.compute_needed = true;
    parameter.touched.count = 0;
    parameter.owned.count = 0;
  }
}

}  // namespace overtok

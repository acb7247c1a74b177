#include "core/gradient_sum.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "core/ops/elementwise.h"

namespace overtok {
namespace {

// Partial sums that stand at most: a micro-batch of even number i joins those of the bits of i.
int64_t LevelsOf(int64_t micro_batches) {
  int64_t levels = 1;
  for (int64_t i = 0; i < micro_batches; i += 2) {
    levels = std::max<int64_t>(levels, std::popcount(static_cast<uint64_t>(i)) + 1);
  }
  return levels;
}

Tensor GradientOf(const Parameter& parameter) {
  return parameter.is_table() ? parameter.touched.gradient : parameter.gradient;
}

// The rows that count: of tables those of this step.
Tensor Used(const Parameter& parameter, const Tensor& tensor) {
  return parameter.is_table() ? tensor.Rows(0, parameter.touched.count) : tensor;
}

void AddTo(const Context& context, const Parameter& parameter, const Tensor& x, const Tensor& y) {
  const Tensor from = Used(parameter, x);
  if (from.elements() > 0) Add(context, {from, Used(parameter, y)});
}

}  // namespace

GradientSum::GradientSum(ParameterSet* parameters, int64_t micro_batches, GradientOrder order,
                         Memory* memory)
    : micro_batches_(micro_batches), order_(order) {
  OT_CHECK_GE(micro_batches, 1);
  const int64_t levels = plain() ? 1 : LevelsOf(micro_batches);
  const bool leaves = !plain() && micro_batches > 1;
  int64_t largest = 0;
  for (Parameter& parameter : parameters->all()) {
    Sums& sums = sums_[&parameter];
    const Tensor gradient = GradientOf(parameter);
    const auto take = [&](const std::string& what) {
      return memory->Take(Purpose::kGradients, absl::StrCat(parameter.spec.name, what), DType::kF32,
                          gradient.shape());
    };
    sums.levels.push_back(gradient);
    for (int64_t level = 1; level < levels; ++level) {
      sums.levels.push_back(take(absl::StrCat(".sum", level)));
    }
    if (!leaves) continue;
    if (parameter.spec.used_twice) {
      sums.leaf = take(".leaf");
    } else {
      largest = std::max(largest, gradient.elements());
    }
  }
  if (!leaves) return;
  const Tensor shared = memory->Take(Purpose::kGradients, "leaf", DType::kF32, {largest});
  for (Parameter& parameter : parameters->all()) {
    Sums& sums = sums_[&parameter];
    const Tensor gradient = GradientOf(parameter);
    if (!sums.leaf.defined()) {
      sums.leaf = shared.Rows(0, gradient.elements()).Reshape(gradient.shape());
    }
  }
}

void GradientSum::Start(int64_t index) {
  OT_CHECK(index >= 0 && index < micro_batches_);
  index_ = index;
  for (auto& [parameter, sums] : sums_) {
    if (index == 0) {
      sums.finished = 0;
      sums.depth = 0;
    }
    OT_CHECK(parameter->is_table() || sums.finished == index)
        << parameter->spec.name << " had no gradient in micro-batch " << index - 1;
    sums.uses = 0;
    sums.written = false;
  }
}

GradientSum::Leaf GradientSum::Begin(Parameter& parameter) {
  Sums& sums = sums_.at(&parameter);
  Leaf leaf;
  if (plain()) {
    leaf = {sums.levels[0], sums.written || sums.finished > 0};
  } else {
    const bool odd = index_ % 2 == 1;
    leaf = {odd ? sums.leaf : sums.levels[static_cast<size_t>(sums.depth)], sums.written};
  }
  sums.written = true;
  return leaf;
}

Tensor GradientSum::BeginRows(const Context& context, Parameter& parameter) {
  const Leaf leaf = Begin(parameter);
  const Tensor used = Used(parameter, leaf.tensor);
  if (!leaf.accumulate && used.elements() > 0) Fill(context, {used, 0});
  return used;
}

void GradientSum::Join(const Context& context, const Parameter& parameter, Sums& sums) {
  const auto level = [&](int64_t i) { return sums.levels[static_cast<size_t>(i)]; };
  if (index_ % 2 == 0) {
    ++sums.depth;
  } else {
    AddTo(context, parameter, sums.leaf, level(sums.depth - 1));
    // Two sums of equal length become one of twice the length.
    for (int64_t pairs = index_ / 2; pairs % 2 == 1; pairs /= 2) {
      AddTo(context, parameter, level(sums.depth - 1), level(sums.depth - 2));
      --sums.depth;
    }
  }
  if (index_ + 1 < micro_batches_) return;
  for (; sums.depth > 1; --sums.depth) {
    AddTo(context, parameter, level(sums.depth - 1), level(sums.depth - 2));
  }
}

void GradientSum::Finish(const Context& context, Parameter& parameter) {
  Sums& sums = sums_.at(&parameter);
  OT_CHECK(sums.written) << parameter.spec.name;
  if (++sums.uses < (parameter.spec.used_twice ? 2 : 1)) return;
  if (!plain()) Join(context, parameter, sums);
  ++sums.finished;
  if (sums.finished == micro_batches_ && !parameter.is_table() && complete_) complete_(parameter);
}

}  // namespace overtok

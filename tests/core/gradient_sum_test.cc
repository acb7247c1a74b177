// The tree of micro-batches against scalar sums, bit for bit; what it takes of memory; what it
// refuses.
#include "core/gradient_sum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "core/rng.h"

namespace overtok {
namespace {

constexpr int64_t kRows = 9, kTouched = 5, kWidth = 3;

std::vector<ParameterSpec> Specs() {
  const auto spec = [](const char* name, Shape shape) {
    return ParameterSpec{.name = name,
                         .shape = shape,
                         .placement = Placement::kReplicated,
                         .group = OptimizerGroup::kAdam,
                         .initializer = Initializer::kOnes,
                         .scale = 1};
  };
  std::vector<ParameterSpec> specs = {spec("matrix", {7, 5}), spec("gain", {4}),
                                      spec("tied", {6, 2}), spec("table", {kRows, kWidth})};
  specs[2].used_twice = true;
  specs[3].update = UpdateKind::kTable;
  specs[3].touched_capacity = kRows;
  return specs;
}

// What micro-batch `leaf` adds to element i of a parameter by its use number `use`.
float Part(const std::string& name, int64_t step, int64_t leaf, int64_t use, int64_t i) {
  const auto words = Philox(name.size() * 10 + static_cast<uint64_t>(use),
                            static_cast<uint64_t>(100 * step + leaf), static_cast<uint64_t>(i));
  // Of sizes that differ, so that every other order has other roundings.
  return static_cast<float>((UniformOpen(words[0], words[1]) - 0.5) * std::exp2(words[2] % 9));
}

float Leaf(const ParameterSpec& spec, int64_t step, int64_t leaf, int64_t i) {
  const float first = Part(spec.name, step, leaf, 0, i);
  return spec.used_twice ? first + Part(spec.name, step, leaf, 1, i) : first;
}

// Aligned powers of two, the rest joined from the smallest up.
float Tree(const ParameterSpec& spec, int64_t step, int64_t first, int64_t count, int64_t i) {
  if (count == 1) return Leaf(spec, step, first, i);
  const auto whole = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)));
  const int64_t left = whole == count ? count / 2 : whole;
  return Tree(spec, step, first, left, i) + Tree(spec, step, first + left, count - left, i);
}

// In order; a second use is added to what stands.
float InOrder(const ParameterSpec& spec, int64_t step, int64_t count, int64_t i) {
  float sum = 0;
  for (int64_t leaf = 0; leaf < count; ++leaf) {
    for (int64_t use = 0; use < (spec.used_twice ? 2 : 1); ++use) {
      const float part = Part(spec.name, step, leaf, use, i);
      sum = leaf + use == 0 ? part : sum + part;
    }
  }
  return sum;
}

class Model {
 public:
  Model(int64_t micro_batches, GradientOrder order)
      : memory_(Memory::Mode::kReal),
        context_(CpuContext()),
        parameters_(&memory_, DType::kF32, true),
        micro_batches_(micro_batches) {
    for (const ParameterSpec& spec : Specs()) parameters_.Add(spec, false);
    before_ = memory_.bytes(Purpose::kGradients);
    sum_ = std::make_unique<GradientSum>(&parameters_, micro_batches, order, &memory_);
    taken_ = memory_.bytes(Purpose::kGradients) - before_;
    sum_->OnComplete([this](Parameter& p) { completed_.push_back(p.spec.name); });
    memory_.Commit(&context_);
  }

  Parameter& At(const char* name) { return *parameters_.Find(name); }
  GradientSum& sum() { return *sum_; }
  int64_t taken() const { return taken_; }  // bytes beside one gradient for each parameter

  // A backward pass: the tied matrix's head first, its lookup last, by rows.
  // `first`: number in the batch of the first micro-batch here.
  void Step(int64_t step, int64_t first = 0) {
    completed_.clear();
    At("table").touched.count = kTouched;
    for (int64_t i = 0; i < micro_batches_; ++i) {
      const int64_t leaf = first + i;
      sum_->Start(i);
      Use("tied", step, leaf, 0);
      Use("matrix", step, leaf, 0);
      AddRows("table", step, leaf, 0);
      Use("gain", step, leaf, 0);
      AddRows("tied", step, leaf, 1);
    }
  }
  const std::vector<std::string>& completed() const { return completed_; }

  void Use(const char* name, int64_t step, int64_t leaf, int64_t use) {
    Parameter& parameter = At(name);
    const GradientSum::Leaf target = sum_->Begin(parameter);
    auto* values = target.tensor.data<float>();
    for (int64_t i = 0; i < target.tensor.elements(); ++i) {
      const float part = Part(name, step, leaf, use, i);
      values[i] = target.accumulate ? values[i] + part : part;
    }
    sum_->Finish(context_, parameter);
  }

 private:
  void AddRows(const char* name, int64_t step, int64_t leaf, int64_t use) {
    Parameter& parameter = At(name);
    const Tensor rows = sum_->BeginRows(context_, parameter);
    for (int64_t i = 0; i < rows.elements(); ++i)
      rows.data<float>()[i] += Part(name, step, leaf, use, i);
    sum_->Finish(context_, parameter);
  }

  Memory memory_;
  Context context_;
  ParameterSet parameters_;
  int64_t micro_batches_, before_ = 0, taken_ = 0;
  std::unique_ptr<GradientSum> sum_;
  std::vector<std::string> completed_;
};

Tensor GradientOf(const Parameter& parameter) {
  return parameter.is_table() ? parameter.touched.used_gradient() : parameter.gradient;
}

TEST(GradientSum, IsTheTreeOverOneToNineMicroBatches) {
  bool another_order_differs = false;
  for (int64_t count = 1; count <= 9; ++count) {
    Model model(count, GradientOrder::kTree);
    for (int64_t step = 0; step < 2; ++step) {  // the second finds what the first left
      model.Step(step);
      for (const ParameterSpec& spec : Specs()) {
        const Tensor gradient = GradientOf(model.At(spec.name.c_str()));
        ASSERT_EQ(gradient.elements(),
                  spec.update == UpdateKind::kTable ? kTouched * kWidth : spec.shape.elements());
        for (int64_t i = 0; i < gradient.elements(); ++i) {
          ASSERT_EQ(gradient.data<float>()[i], Tree(spec, step, 0, count, i))
              << spec.name << " " << i << ", " << count << " micro-batches";
          another_order_differs |= gradient.data<float>()[i] != InOrder(spec, step, count, i);
        }
      }
    }
  }
  EXPECT_TRUE(another_order_differs);
}

// Two ranks with half of the leaves each, and one addition, are one rank with all: what the
// exchange of gradients builds on.
TEST(GradientSum, HalvesOfAPowerOfTwoJoinToTheWhole) {
  Model whole(8, GradientOrder::kTree), first(4, GradientOrder::kTree);
  Model second(4, GradientOrder::kTree);
  whole.Step(0);
  first.Step(0);
  second.Step(0, 4);
  for (const ParameterSpec& spec : Specs()) {
    const auto value = [&](Model& model, int64_t i) {
      return GradientOf(model.At(spec.name.c_str())).data<float>()[i];
    };
    for (int64_t i = 0; i < GradientOf(whole.At(spec.name.c_str())).elements(); ++i) {
      EXPECT_EQ(value(whole, i), value(first, i) + value(second, i)) << spec.name;
    }
  }
}

TEST(GradientSum, PlainIsTheSumInOrder) {
  for (const int64_t count : {1, 2, 5, 8}) {
    Model model(count, GradientOrder::kPlain);
    EXPECT_EQ(model.taken(), 0);
    for (int64_t step = 0; step < 2; ++step) {
      model.Step(step);
      for (const ParameterSpec& spec : Specs()) {
        const Tensor gradient = GradientOf(model.At(spec.name.c_str()));
        for (int64_t i = 0; i < gradient.elements(); ++i) {
          ASSERT_EQ(gradient.data<float>()[i], InOrder(spec, step, count, i)) << spec.name;
        }
      }
    }
  }
}

// Gradients leave while the backward pass runs: in its order, each once, after its last use.
TEST(GradientSum, TellsOnceWhatIsComplete) {
  for (const GradientOrder order : {GradientOrder::kTree, GradientOrder::kPlain}) {
    for (const int64_t count : {1, 3, 4}) {
      Model model(count, order);
      for (int64_t step = 0; step < 2; ++step) {
        model.Step(step);
        EXPECT_EQ(model.completed(), std::vector<std::string>({"matrix", "gain", "tied"}));
      }
    }
  }
}

// One more tensor per parameter for each doubling beyond two micro-batches, one leaf of the largest
// for those that are used once, and one of its own for each that is used twice.
TEST(GradientSum, TakesWhatItSays) {
  int64_t all = 0;
  for (const ParameterSpec& spec : Specs()) all += spec.shape.elements();
  constexpr int64_t kLeaves = 7 * 5 + 6 * 2;
  const std::vector<int64_t> more = {0, 0, 1, 1, 1, 1, 2, 2, 2};  // of 1 to 9 micro-batches
  for (int64_t count = 1; count <= 9; ++count) {
    const int64_t elements =
        more[static_cast<size_t>(count - 1)] * all + (count == 1 ? 0 : kLeaves);
    EXPECT_EQ(Model(count, GradientOrder::kTree).taken(), 4 * elements) << count;
  }
}

TEST(GradientSum, AParameterThatMissesAMicroBatchAborts) {
  EXPECT_DEATH(
      {
        Model model(2, GradientOrder::kTree);
        model.sum().Start(0);
        model.Use("matrix", 0, 0, 0);
        model.sum().Start(1);
      },
      "had no gradient in micro-batch 0");
  // Used once where it should be used twice.
  EXPECT_DEATH(
      {
        Model model(2, GradientOrder::kTree);
        model.sum().Start(0);
        for (const char* name : {"matrix", "gain", "tied"}) model.Use(name, 0, 0, 0);
        model.sum().Start(1);
      },
      "tied had no gradient in micro-batch 0");
}

}  // namespace
}  // namespace overtok

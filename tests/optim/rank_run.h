// Several ranks under the optimizer: parameters of all placements with sizes that do not divide,
// gradients whose logical sums are the same under every layout, and what comes out, put together
// from all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/comm/communicator.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "optim/optimizer.h"
#include "tests/optim/reference_optimizer.h"

namespace overtok::testing {

// Leaves of the tree of gradients: micro-batches of the global batch. Data ranks divide them.
inline constexpr int kLeaves = 4;

// The gradient of a leaf for one logical element.
using LeafGradient =
    std::function<float(const ParameterSpec& spec, int64_t step, int leaf, int64_t element)>;
float RandomLeaf(const ParameterSpec& spec, int64_t step, int leaf, int64_t element);

const std::vector<ParameterSpec>& RankSpecs();  // the last is a table

// Logical tensors, and how often each element was given.
struct Gathered {
  std::vector<float> elements;
  std::vector<int> given;
  bool EachOnce() const;
};

struct RankResult {
  std::map<std::string, Gathered> values, state, gradients;
  std::array<double, kOptimizerGroups> norms{};  // of the last step
  double total_norm = 0;
  int copies_that_differ = 0;    // values of holders that are not the owner's
  int norms_that_differ = 0;     // ranks whose norms are not rank 0's
  int traffic_that_differs = 0;  // ranks that sent other bytes than TrafficOfStep says
};

struct RankSetup {
  int data = 1, tensor = 1;
  int64_t steps = 3;
  OptimizerConfig config;
  LeafGradient leaf = RandomLeaf;
  bool zero_values = false;
  GradientOrder sums = GradientOrder::kTree;
  // Data ranks with the leaf of their own number alone.
  bool one_leaf_each = false;
};
RankResult RunSteps(const RankSetup& setup);

// The same parameters and gradients under the reference, in double: values, and "<group>.m/..."
// and "<group>.v/..." of the state.
std::map<std::string, std::vector<double>> ReferenceSteps(const RankSetup& setup);

OptimizerConfig RankConfig();

}  // namespace overtok::testing

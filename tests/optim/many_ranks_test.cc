// The optimizer on several ranks: against the reference in double under every layout, bit-equal
// under every number of data ranks, every element owned once, copies equal to their owner's, bytes
// as the formula says; zeros.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tests/optim/rank_run.h"
#include "tests/optim/read_norms.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::Gathered;
using testing::RankResult;
using testing::RankSetup;

RankSetup On(int data, int tensor) {
  RankSetup setup;
  setup.data = data;
  setup.tensor = tensor;
  setup.config = testing::RankConfig();
  return setup;
}

void ExpectConsistent(const RankResult& result) {
  EXPECT_EQ(result.copies_that_differ, 0);
  EXPECT_EQ(result.norms_that_differ, 0);
  EXPECT_EQ(result.traffic_that_differs, 0);
  for (const auto* all : {&result.values, &result.state, &result.gradients}) {
    for (const auto& [name, tensor] : *all) EXPECT_TRUE(tensor.EachOnce()) << name;
  }
  // 14 dense parameters and a table; of each 2 tensors of state, of the 8 matrices 1.
  EXPECT_EQ(result.values.size(), 15u);
  EXPECT_EQ(result.gradients.size(), 14u);
  EXPECT_EQ(result.state.size(), 8u + 2 * 7u);
}

double Distance(const std::vector<float>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}
double Norm(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

// cases.md 38: what is done follows from the logical shape: one reference for all layouts, with
// sizes that no number of ranks divides.
TEST(ManyRanks, EveryLayoutAgreesWithTheReference) {
  const auto expected = testing::ReferenceSteps(On(1, 1));
  RankSetup start = On(1, 1);
  start.steps = 0;
  const auto before = testing::ReferenceSteps(start);
  for (const auto& [data, tensor] : {std::pair{1, 1}, {2, 1}, {4, 1}, {1, 2}, {2, 2}, {1, 4}}) {
    SCOPED_TRACE(std::to_string(data) + " x " + std::to_string(tensor));
    const RankResult result = testing::RunSteps(On(data, tensor));
    ExpectConsistent(result);
    int compared = 0;
    for (const auto* all : {&result.values, &result.state}) {
      for (const auto& [name, tensor_now] : *all) {
        if (name.find("table") != std::string::npos) continue;
        // Of values the way gone in 3 steps, to 5e-5 of a step each (optimizer_test.cc).
        double size = Norm(expected.at(name));
        if (all == &result.values) {
          std::vector<double> way = expected.at(name);
          for (size_t i = 0; i < way.size(); ++i) way[i] -= before.at(name)[i];
          size = Norm(way);
        }
        const double distance = Distance(tensor_now.elements, expected.at(name));
        EXPECT_TRUE(distance <= (all == &result.values ? 1e-4 : 1e-5) * size)
            << name << " " << distance / size;
        ++compared;
      }
    }
    EXPECT_EQ(compared, 14 + 8 + 2 * 6);
  }
}

bool SameBits(const std::map<std::string, Gathered>& a, const std::map<std::string, Gathered>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, tensor] : a) {
    const std::vector<float>& other = b.at(name).elements;
    if (tensor.elements.size() != other.size() ||
        std::memcmp(tensor.elements.data(), other.data(), other.size() * sizeof(float)) != 0) {
      ADD_FAILURE() << name << " differs";
      return false;
    }
  }
  return true;
}

TEST(ManyRanks, DataRanksChangeNoBit) {
  for (const int tensor : {1, 2}) {
    RankSetup setup = On(1, tensor);
    setup.steps = 5;
    const RankResult one = testing::RunSteps(setup);
    for (const int data : {2, 4}) {
      SCOPED_TRACE(std::to_string(data) + " x " + std::to_string(tensor));
      setup.data = data;
      const RankResult many = testing::RunSteps(setup);
      EXPECT_TRUE(SameBits(one.values, many.values));
      EXPECT_TRUE(SameBits(one.state, many.state));
      EXPECT_TRUE(SameBits(one.gradients, many.gradients));
      EXPECT_EQ(one.norms, many.norms);
      EXPECT_EQ(one.total_norm, many.total_norm);
    }
  }
}

// 3 ranks, each with one leaf, of values whose sum depends on the order: (a + b) + c both ways,
// then 4: (a + b) + (c + d) by the tree and ((a + b) + c) + d in order.
TEST(ManyRanks, GradientsAreSummedByTheOrderAskedFor) {
  for (const int data : {3, 4}) {
    for (const GradientOrder sums : {GradientOrder::kTree, GradientOrder::kPlain}) {
      RankSetup setup = On(data, 1);
      setup.steps = 1;
      setup.one_leaf_each = true;
      setup.sums = sums;
      setup.leaf = [](const ParameterSpec&, int64_t, int leaf, int64_t) {
        return leaf == 0 ? 1.0F : 0x1p-24F;
      };
      const RankResult result = testing::RunSteps(setup);
      const bool pairs = data == 4 && sums == GradientOrder::kTree;
      for (const auto& [name, tensor] : result.gradients) {
        for (const float x : tensor.elements)
          ASSERT_EQ(x, pairs ? 1 + 0x1p-23F : 1.0F) << name << " " << data;
      }
    }
  }
}

TEST(ManyRanks, ZeroGradientsMoveNothingAndZeroMatricesStay) {
  for (const bool zero_values : {false, true}) {
    RankSetup setup = On(2, 2);
    setup.zero_values = zero_values;
    if (!zero_values) setup.leaf = [](const ParameterSpec&, int64_t, int, int64_t) { return 0.0F; };
    const RankResult result = testing::RunSteps(setup);
    ExpectConsistent(result);
    EXPECT_EQ(result.total_norm == 0, !zero_values);
    setup.steps = 0;
    const RankResult before = testing::RunSteps(setup);
    for (const auto& [name, tensor] : result.values) {
      const std::vector<float>& old = before.values.at(name).elements;
      const bool adam =
          name == "embed" || name == "gain" || name == "norm" || name == "wide" || name == "table";
      for (size_t i = 0; i < tensor.elements.size(); ++i) {
        ASSERT_TRUE(std::isfinite(tensor.elements[i])) << name;
        // Norms of matrices are restored to a rounding of each step.
        if (!zero_values || !adam) {
          ASSERT_TRUE(std::abs(tensor.elements[i] - old[i]) <= 3 * 1.2e-7F * std::abs(old[i]))
              << name;
        }
      }
    }
  }
}

TEST(ManyRanks, NaNOnOneRankIsEveryRanksNorm) {
  RankSetup setup = On(2, 2);
  setup.steps = 1;
  setup.leaf = [](const ParameterSpec& spec, int64_t step, int leaf, int64_t element) {
    if (spec.name == "wd" && leaf == 3 && element == 1000) return std::nanf("");
    return testing::RandomLeaf(spec, step, leaf, element);
  };
  const RankResult result = testing::RunSteps(setup);
  EXPECT_TRUE(std::isnan(result.total_norm));
  EXPECT_EQ(result.norms_that_differ, 4);  // a NaN is not itself
  EXPECT_TRUE(std::isfinite(result.norms[static_cast<size_t>(OptimizerGroup::kAdam)]));
}

// cases.md 48 and 49: shards 3 and 4 and a replicated 12 have norm 13; counted once per rank the
// replicated one would make it 17.7, and with a shard left out it is 12.4 or 12.6.
TEST(ManyRanks, NormsCountReplicatedOnceAndEveryShard) {
  testing::RunOnRanks(2, [](Communicator& world) {
    Memory memory(Memory::Mode::kReal);
    Context context = CpuContext();
    const Mesh mesh(&world, 2);
    ParameterSet parameters(&memory, DType::kF32, true, {}, mesh.layout());
    const auto add = [&](const char* name, Shape shape, Placement placement) {
      return &parameters.Add({.name = name,
                              .shape = shape,
                              .placement = placement,
                              .group = OptimizerGroup::kAdam,
                              .initializer = Initializer::kOnes,
                              .scale = 1},
                             false);
    };
    Parameter* shards = add("shards", {2}, Placement::kTensorRows);
    Parameter* replicated = add("replicated", {1}, Placement::kReplicated);
    Optimizer optimizer(testing::RankConfig(), 10, 1, &parameters, {shards, replicated}, &mesh,
                        &memory);
    memory.Commit(&context);
    shards->gradient.data<float>()[0] = world.rank() == 0 ? 3 : 4;
    replicated->gradient.data<float>()[0] = world.rank() == 0 ? 7 : 5;  // used on shares of tokens
    for (Parameter* parameter : {shards, replicated}) optimizer.GradientReady(context, *parameter);
    optimizer.FinishGradients(context);
    optimizer.ComputeNorms(context, 0, {});
    EXPECT_EQ(testing::NormOf(OptimizerGroup::kAdam, context, optimizer), 13);
    EXPECT_EQ(testing::ReadNorms(context, optimizer).total, 13);
  });
}

// One rank takes no more than state, sums and the stacks of matrices, and sends nothing.
TEST(ManyRanks, OneRankTakesNothingForOthers) {
  testing::RunOnRanks(1, [](Communicator& world) {
    Memory memory(Memory::Mode::kReal);
    const Mesh mesh(&world, 1);
    ParameterSet parameters(&memory, DType::kF32, true, {}, mesh.layout());
    std::vector<Parameter*> order;
    int64_t state = 0;
    for (const ParameterSpec& spec : testing::RankSpecs()) {
      if (spec.update == UpdateKind::kTable) continue;
      order.push_back(&parameters.Add(spec, false));
      state += (spec.group == OptimizerGroup::kMuonH ? 4 : 8) * spec.shape.elements();
    }
    const int64_t gradients = memory.bytes(Purpose::kGradients);
    const Optimizer optimizer(testing::RankConfig(), 10, 1, &parameters, order, &mesh, &memory);
    EXPECT_EQ(memory.bytes(Purpose::kGradients), gradients);
    // Exact sums, 560 bytes each, of the norms and of two heads; what comes of them, and sums of
    // blocks: below a kilobyte here.
    const int64_t sums = (Optimizer::kNorms + 2 * 3) * 560;
    EXPECT_TRUE(memory.bytes(Purpose::kOptimizer) >= state + sums &&
                memory.bytes(Purpose::kOptimizer) <= state + sums + 1024);
    EXPECT_TRUE(optimizer.masters().empty());
    const StepTraffic traffic =
        TrafficOfStep(AssignPieces(parameters, mesh.layout()), mesh.layout());
    EXPECT_EQ(traffic.gradients + traffic.weights + traffic.control, 0);
  });
}

}  // namespace
}  // namespace overtok

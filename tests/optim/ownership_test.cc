// Owners: every element once, among its holders, in ranges of whole blocks; matrices balanced by
// their cost; vectors spread; the same list on every rank.
#include "optim/ownership.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "core/memory.h"
#include "core/ops/blocks.h"
#include "tests/optim/rank_run.h"

namespace overtok {
namespace {

std::vector<Piece> Assign(const std::vector<ParameterSpec>& specs, const Layout& layout,
                          Memory* memory, std::unique_ptr<ParameterSet>* parameters) {
  *parameters = std::make_unique<ParameterSet>(memory, DType::kF32, true, TableStorage(), layout);
  for (const ParameterSpec& spec : specs) (*parameters)->Add(spec, false);
  return AssignPieces(**parameters, layout);
}

TEST(Ownership, EveryElementHasOneOwnerAmongItsHolders) {
  for (const auto& [data, tensor] : {std::pair{1, 1}, {2, 1}, {8, 1}, {1, 4}, {2, 2}, {3, 4}}) {
    SCOPED_TRACE(std::to_string(data) + " x " + std::to_string(tensor));
    for (int rank = 0; rank < data * tensor; ++rank) {
      const Layout layout = Layout::Of(data * tensor, rank, tensor);
      Memory memory(Memory::Mode::kDry);
      std::unique_ptr<ParameterSet> parameters;
      const std::vector<Piece> pieces = Assign(testing::RankSpecs(), layout, &memory, &parameters);
      std::map<std::string, std::vector<int>> given;
      std::map<const Parameter*, int> order;
      for (const Parameter& parameter : parameters->all()) {
        order[&parameter] = static_cast<int>(order.size());
        if (!parameter.is_table())
          given[parameter.spec.name].resize(static_cast<size_t>(parameter.spec.shape.elements()));
      }
      int before = 0;
      for (const Piece& piece : pieces) {
        EXPECT_GE(order.at(piece.parameter), before);
        before = order.at(piece.parameter);
        EXPECT_EQ(piece.part < 0, piece.parameter->spec.group == OptimizerGroup::kMuonH);
        EXPECT_GT(piece.count, 0);
        EXPECT_EQ(piece.begin % kBlockElements, 0);
        if (piece.part >= 0) {
          const std::vector<int> holders = HoldersOf(*piece.parameter, piece.part, layout);
          EXPECT_TRUE(std::find(holders.begin(), holders.end(), piece.owner) != holders.end());
        }
        std::vector<int>& elements = given.at(piece.parameter->spec.name);
        ForEachRun(RegionOf(piece), [&](int64_t logical, int64_t, int64_t count) {
          for (int64_t i = 0; i < count; ++i) ++elements[static_cast<size_t>(logical + i)];
        });
      }
      for (const auto& [name, elements] : given) {
        EXPECT_TRUE(std::all_of(elements.begin(), elements.end(), [](int n) { return n == 1; }))
            << name;
      }
    }
  }
}

TEST(Ownership, AllRanksMakeTheSameList) {
  std::vector<std::string> first;
  for (int rank = 0; rank < 8; ++rank) {
    const Layout layout = Layout::Of(8, rank, 4);
    Memory memory(Memory::Mode::kDry);
    std::unique_ptr<ParameterSet> parameters;
    std::vector<std::string> list;
    for (const Piece& p : Assign(testing::RankSpecs(), layout, &memory, &parameters)) {
      list.push_back(p.parameter->spec.name + " " + std::to_string(p.part) + " " +
                     std::to_string(p.begin) + " " + std::to_string(p.count) + " " +
                     std::to_string(p.owner));
    }
    if (rank == 0) first = list;
    EXPECT_EQ(list, first);
  }
}

// The matrices of a model of 12 layers.
TEST(Ownership, MatricesAreBalancedByTheirCost) {
  std::vector<ParameterSpec> specs;
  const auto add = [&](const std::string& name, Shape shape, OptimizerGroup group) {
    specs.push_back({.name = name,
                     .shape = shape,
                     .placement = Placement::kReplicated,
                     .group = group,
                     .initializer = Initializer::kNormal,
                     .scale = 1});
  };
  for (int layer = 0; layer < 12; ++layer) {
    const std::string name = std::to_string(layer);
    for (const char* part : {".q", ".o"}) add(name + part, {768, 768}, OptimizerGroup::kMuonH);
    for (const char* part : {".k", ".v"}) add(name + part, {256, 768}, OptimizerGroup::kMuonH);
    for (const char* part : {".g", ".u"}) add(name + part, {2688, 768}, OptimizerGroup::kMuonH);
    add(name + ".d", {768, 2688}, OptimizerGroup::kMuonH);
    for (const char* part : {".n1", ".n2"}) add(name + part, {768}, OptimizerGroup::kAdam);
  }
  for (const int ranks : {2, 4, 8}) {
    const Layout layout = Layout::Of(ranks, 0, 1);
    Memory memory(Memory::Mode::kDry);
    std::unique_ptr<ParameterSet> parameters;
    std::vector<double> load(static_cast<size_t>(ranks), 0.0);
    std::vector<int> vectors(static_cast<size_t>(ranks), 0);
    double total = 0;
    for (const Piece& piece : Assign(specs, layout, &memory, &parameters)) {
      const Shape& shape = piece.parameter->spec.shape;
      if (piece.part >= 0) {
        ++vectors[static_cast<size_t>(piece.owner)];
        continue;
      }
      const double cost = OrthogonalisationCost(shape[0], shape[1], 5);
      load[static_cast<size_t>(piece.owner)] += cost;
      total += cost;
    }
    // 36 of the 84 matrices are nearly all of the cost: 5 or 4 of them to each of 8 ranks.
    const double most = *std::max_element(load.begin(), load.end());
    EXPECT_TRUE(most <= (ranks == 8 ? 1.13 : 1.02) * total / ranks) << ranks << " " << most / total;
    const auto [least_vectors, most_vectors] = std::minmax_element(vectors.begin(), vectors.end());
    EXPECT_EQ(*least_vectors, 24 / ranks);
    EXPECT_EQ(*most_vectors, 24 / ranks);
  }
}

// X X^T and A A and their combination times X, on the smaller side: the same for the transpose.
TEST(Ownership, CostCountsMultiplications) {
  EXPECT_EQ(OrthogonalisationCost(2, 3, 1), 2 * 2 * 3 + 2 * 2 * 2 + 2 * 2 * 3);
  EXPECT_EQ(OrthogonalisationCost(3, 2, 5), 5 * OrthogonalisationCost(2, 3, 1));
}

}  // namespace
}  // namespace overtok

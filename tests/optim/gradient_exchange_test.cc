// The exchange of gradients bit for bit against scalar loops over all holders' contributions, with
// parameters that take several buckets, over several steps; and what it takes.
#include "optim/gradient_exchange.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/optim/rank_run.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::RandomLeaf;

std::vector<ParameterSpec> Specs() {
  const auto spec = [](const char* name, Shape shape, Placement placement, OptimizerGroup group) {
    return ParameterSpec{.name = name,
                         .shape = shape,
                         .placement = placement,
                         .group = group,
                         .initializer = Initializer::kNormal,
                         .scale = 1};
  };
  return {spec("large", {1200, 1000}, Placement::kReplicated, OptimizerGroup::kAdam),
          spec("small", {3}, Placement::kReplicated, OptimizerGroup::kAdam),
          spec("rows", {370, 1001}, Placement::kTensorRows, OptimizerGroup::kMuonH),
          spec("columns", {90, 301}, Placement::kTensorColumns, OptimizerGroup::kMuonH),
          spec("whole", {60, 61}, Placement::kReplicated, OptimizerGroup::kMuonH),
          spec("vocabulary", {1001, 100}, Placement::kVocabularyRows, OptimizerGroup::kAdamH)};
}

// The contributions of a logical element's holders: the tree over data ranks (1, 2 or 4 here), then
// replicas in order.
float Expected(const Parameter& parameter, int64_t part, const Layout& layout, int64_t step,
               int64_t element) {
  const std::vector<int> holders = HoldersOf(parameter, part, layout);
  float sum = 0;
  for (size_t first = 0; first < holders.size(); first += static_cast<size_t>(layout.data)) {
    std::vector<float> level;
    for (int d = 0; d < layout.data; ++d)
      level.push_back(
          RandomLeaf(parameter.spec, step, holders[first + static_cast<size_t>(d)], element));
    while (level.size() > 1) {
      for (size_t i = 0; i + 1 < level.size(); i += 2) level[i / 2] = level[i] + level[i + 1];
      level.resize(level.size() / 2);
    }
    sum = first == 0 ? level[0] : sum + level[0];
  }
  return sum;
}

// The part that holds a logical element of a piece.
int64_t PartOfElement(const Parameter& parameter, int64_t element) {
  const Sharding& sharding = parameter.sharding;
  const Shape& shape = parameter.spec.shape;
  if (sharding.split == Split::kWhole) return 0;
  const bool columns = sharding.split == Split::kColumns;
  const int64_t width = shape.rank() == 2 ? shape[1] : 1;
  return PartOf(sharding, columns ? shape[1] : shape[0],
                columns ? element % width : element / width);
}

TEST(GradientExchange, OwnersHaveTheOrderedSumsOfAllHolders) {
  for (const auto& [data, tensor] : {std::pair{1, 2}, {2, 2}, {4, 1}}) {
    SCOPED_TRACE(std::to_string(data) + " x " + std::to_string(tensor));
    testing::RunOnRanks(data * tensor, [&, tensor = tensor](Communicator& world) {
      Memory memory(Memory::Mode::kReal);
      const Context context = CpuContext();
      const Mesh mesh(&world, tensor);
      const Layout& layout = mesh.layout();
      ParameterSet parameters(&memory, DType::kF32, true, {}, layout);
      std::vector<Parameter*> order;
      for (const ParameterSpec& spec : Specs()) {
        order.insert(order.begin(), &parameters.Add(spec, false));
      }
      const std::vector<Piece> pieces = AssignPieces(parameters, layout);
      const std::vector<OwnedPiece> owned = TakeOwnedPieces(pieces, world.rank(), &memory);
      GradientExchange exchange(pieces, owned, order, &mesh, GradientOrder::kTree, &memory);
      for (int64_t step = 0; step < 2; ++step) {
        for (Parameter* parameter : order) {
          float* gradient = parameter->gradient.data<float>();
          ForEachRun(parameter->region(), [&](int64_t logical, int64_t place, int64_t count) {
            for (int64_t i = 0; i < count; ++i)
              gradient[place + i] = RandomLeaf(parameter->spec, step, world.rank(), logical + i);
          });
          exchange.Ready(context, *parameter);
        }
        exchange.Finish(context);
        for (const OwnedPiece& piece : owned) {
          const Parameter& parameter = *piece.piece.parameter;
          int64_t wrong = 0;
          ForEachRun(piece.region, [&](int64_t logical, int64_t place, int64_t count) {
            for (int64_t i = 0; i < count; i += 7) {  // every seventh: time
              const int64_t part = PartOfElement(parameter, logical + i);
              wrong += piece.gradient.data<float>()[place + i] !=
                       Expected(parameter, part, layout, step, logical + i);
            }
          });
          EXPECT_EQ(wrong, 0) << parameter.spec.name << " at rank " << world.rank();
        }
      }
    });
  }
}

// 8 x 8 ranks, counted without allocating: what is staged stays bounded, whatever a parameter's
// size, and two buckets at most are in flight.
TEST(GradientExchange, StagingIsBounded) {
  const Mesh mesh(Layout::Of(64, 5, 8));
  Memory memory(Memory::Mode::kDry);
  ParameterSet parameters(&memory, DType::kF32, true, {}, mesh.layout());
  std::vector<Parameter*> order;
  for (ParameterSpec spec : Specs()) {
    if (spec.name == "vocabulary") spec.shape = {128256, 2048};
    order.push_back(&parameters.Add(spec, false));
  }
  const std::vector<Piece> pieces = AssignPieces(parameters, mesh.layout());
  const std::vector<OwnedPiece> owned = TakeOwnedPieces(pieces, 5, &memory);
  const int64_t before = memory.bytes(Purpose::kGradients);
  const GradientExchange exchange(pieces, owned, order, &mesh, GradientOrder::kTree, &memory);
  // A bucket may pass its limit by what it is closed with.
  EXPECT_LE(memory.bytes(Purpose::kGradients) - before, 2 * 2 * (int64_t{16} << 20));
}

TEST(GradientExchangeDeathTest, WhatIsNeverCompleteIsNamed) {
  const Mesh mesh(Layout::Of(2, 0, 1));
  Memory memory(Memory::Mode::kReal);
  ParameterSet parameters(&memory, DType::kF32, true, {}, mesh.layout());
  std::vector<Parameter*> order;
  for (const ParameterSpec& spec : Specs()) order.push_back(&parameters.Add(spec, false));
  const std::vector<Piece> pieces = AssignPieces(parameters, mesh.layout());
  const std::vector<OwnedPiece> owned = TakeOwnedPieces(pieces, 0, &memory);
  GradientExchange exchange(pieces, owned, order, &mesh, GradientOrder::kTree, &memory);
  EXPECT_DEATH(exchange.Finish(CpuContext()), "never complete");
  order.pop_back();
  EXPECT_DEATH(GradientExchange(pieces, owned, order, &mesh, GradientOrder::kTree, &memory),
               "vocabulary has no place in the order");
}

}  // namespace
}  // namespace overtok

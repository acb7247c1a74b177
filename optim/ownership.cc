#include "optim/ownership.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/ops/blocks.h"

namespace overtok {
namespace {

bool IsMatrix(const Parameter& parameter) { return parameter.spec.group == OptimizerGroup::kMuonH; }

// Owners of all MuonH matrices in the order of the parameters: the most costly first, each to the
// rank with the least to do so far (Graham's longest processing time first: at most 4/3 of the best
// possible).
std::vector<int> OwnersOfMatrices(const ParameterSet& parameters, int ranks) {
  std::vector<double> costs;
  for (const Parameter& parameter : parameters.all()) {
    if (!IsMatrix(parameter)) continue;
    const Shape& shape = parameter.spec.shape;
    OT_CHECK(shape.rank() == 2 && !parameter.is_table()) << parameter.spec.name << " is no matrix";
    costs.push_back(OrthogonalisationCost(shape[0], shape[1], 1));
  }
  std::vector<size_t> order(costs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return costs[a] > costs[b]; });
  std::vector<double> load(static_cast<size_t>(ranks), 0.0);
  std::vector<int> owners(costs.size());
  for (const size_t matrix : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += costs[matrix];
    owners[matrix] = static_cast<int>(least - load.begin());
  }
  return owners;
}

// Deals the blocks of a part to its holders in ranges. What does not divide goes on from the holder
// where the parts before it have ended, so that many small vectors spread over all holders.
class RangeDealer {
 public:
  void Deal(const Parameter& parameter, int64_t part, const Layout& layout,
            std::vector<Piece>* pieces) {
    const std::vector<int> holders = HoldersOf(parameter, part, layout);
    const auto ranks = static_cast<int64_t>(holders.size());
    const int64_t elements = RegionOf(parameter, part).count;
    const int64_t blocks = ElementBlocks(elements), each = blocks / ranks, rest = blocks % ranks;
    int64_t& next = next_[holders];
    int64_t block = 0;
    for (int64_t i = 0; i < ranks; ++i) {
      const int64_t end = block + each + ((i - next + ranks) % ranks < rest ? 1 : 0);
      const int64_t first = block * kBlockElements;
      const int64_t count = std::min(elements, end * kBlockElements) - first;
      if (count > 0)
        pieces->push_back({&parameter, part, first, count, holders[static_cast<size_t>(i)]});
      block = end;
    }
    next = (next + rest) % ranks;
  }

 private:
  std::map<std::vector<int>, int64_t> next_;  // by holders
};

}  // namespace

std::vector<Piece> AssignPieces(const ParameterSet& parameters, const Layout& layout) {
  const std::vector<int> owners = OwnersOfMatrices(parameters, layout.world());
  std::vector<Piece> pieces;
  RangeDealer dealer;
  size_t matrix = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.is_table()) continue;
    if (IsMatrix(parameter)) {
      pieces.push_back({&parameter, -1, 0, parameter.spec.shape.elements(), owners[matrix++]});
      continue;
    }
    for (int64_t part = 0; part < parameter.sharding.parts; ++part)
      dealer.Deal(parameter, part, layout, &pieces);
  }
  return pieces;
}

std::vector<int> HoldersOf(const Parameter& parameter, int64_t part, const Layout& layout) {
  const auto replicas = static_cast<int>(parameter.replicas);
  OT_CHECK_EQ(parameter.sharding.parts * parameter.replicas, layout.tensor)
      << "parts of " << parameter.spec.name;
  std::vector<int> holders;
  for (int replica = 0; replica < replicas; ++replica) {
    for (int data = 0; data < layout.data; ++data)
      holders.push_back(layout.RankOf(data, static_cast<int>(part) * replicas + replica));
  }
  return holders;
}

Region RegionOf(const Parameter& parameter, int64_t part) {
  Sharding sharding = parameter.sharding;
  sharding.part = part;
  return Region::Part(parameter.spec.shape, sharding);
}

Region RegionOf(const Parameter& parameter, int64_t part, int64_t begin, int64_t count) {
  Region region = RegionOf(parameter, part);
  OT_CHECK(begin >= 0 && count >= 0 && begin + count <= region.count);
  region.begin = begin;
  region.count = count;
  return region;
}

Region RegionOf(const Piece& piece) {
  if (piece.part < 0) return Region::Part(piece.parameter->spec.shape, Sharding());
  return RegionOf(*piece.parameter, piece.part, piece.begin, piece.count);
}

std::vector<Piece> PartsOf(const Piece& piece) {
  if (piece.part >= 0) return {piece};
  std::vector<Piece> parts;
  for (int64_t part = 0; part < piece.parameter->sharding.parts; ++part) {
    const int64_t count = RegionOf(*piece.parameter, part).count;
    if (count > 0) parts.push_back({piece.parameter, part, 0, count, piece.owner});
  }
  return parts;
}

double OrthogonalisationCost(int64_t rows, int64_t cols, int64_t steps) {
  const auto small = static_cast<double>(std::min(rows, cols));
  const auto large = static_cast<double>(std::max(rows, cols));
  // X X^T, A A, and the polynomial times X.
  return static_cast<double>(steps) * small * small * (2 * large + small);
}

}  // namespace overtok

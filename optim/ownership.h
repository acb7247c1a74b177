// Which rank updates what. Every element of every dense parameter has one owner, which holds its
// optimizer state: matrices of MuonH have one owner each (the logical matrix, never a shard),
// balanced by the cost of orthogonalising them; all other parameters are divided into ranges of
// whole blocks (core/ops/blocks.h) among the ranks that hold them, so that sums over blocks do not
// depend on the number of ranks. Tables belong to their rows' ranks and are not listed.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/mesh.h"
#include "core/parameter.h"

namespace overtok {

struct Piece {
  const Parameter* parameter = nullptr;
  // Elements [begin, begin + count) of part `part`; of a MuonH matrix part -1 and all of the
  // logical matrix.
  int64_t part = 0, begin = 0, count = 0;
  int owner = 0;  // world rank
};

// The same list on every rank, in the order of the parameters; ranges without elements are left
// out.
std::vector<Piece> AssignPieces(const ParameterSet& parameters, const Layout& layout);

// World ranks that hold part `part` of `parameter`: for each of its replicas in the order of tensor
// ranks, all data ranks in order.
std::vector<int> HoldersOf(const Parameter& parameter, int64_t part, const Layout& layout);

// Elements [begin, begin + count) of part `part` of `parameter`; all of the part without a range.
Region RegionOf(const Parameter& parameter, int64_t part, int64_t begin, int64_t count);
Region RegionOf(const Parameter& parameter, int64_t part);
// What the owner of a piece holds.
Region RegionOf(const Piece& piece);

// The parts that make up a piece, each as a piece of that part: the piece itself, or of a MuonH
// matrix every part.
std::vector<Piece> PartsOf(const Piece& piece);

// Multiplications of `steps` Newton-Schulz iterations on a [rows, cols] matrix: what owners are
// balanced by.
double OrthogonalisationCost(int64_t rows, int64_t cols, int64_t steps);

}  // namespace overtok

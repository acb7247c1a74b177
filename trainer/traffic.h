// What one rank sends in one training step, by kind: the sums of what the parts of the step send,
// each counted as the code that sends it does. Exact: the counters of the communicators say the
// same, to the byte. Nothing is allocated beyond lists of pieces. docs/planning.md.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/comm/communicator.h"
#include "core/comm/mesh.h"
#include "core/parameter.h"
#include "model/table_exchange.h"
#include "optim/ownership.h"
#include "trainer/config/config.h"

namespace overtok {

using TrafficByKind = std::array<int64_t, kTrafficKinds>;

// Bytes that the rank of `layout` sends to others in a step of TrainStep::Run. `pieces`:
// AssignPieces of `parameters`, for this layout's mesh. `tables`: rows of every table of the model
// between this rank and the others, in the order of the parameters (TableExchange::counts, or
// ExpectedTableCounts).
TrafficByKind TrafficOfRank(const Config& config, const ParameterSet& parameters,
                            const std::vector<Piece>& pieces, const Layout& layout,
                            std::span<const TableCounts> tables);

// Calls of one step in which a tensor rank moves activations, each [n / T, width] to each of the
// others.
struct ActivationMoves {
  int64_t calls = 0;
  int64_t elements = 0;  // that a rank sends to one other rank, all calls
};
ActivationMoves MovesOfActivations(const Config& config, const Layout& layout);

// Rows that a rank is expected to ask of others, and they of it, for every table: ids at random, as
// `overtok bench step` draws them, name min(P, R) rows or fewer, R (1 - (1 - 1 / R)^P) of R rows in
// P positions. Text repeats n-grams, so that it names fewer.
std::vector<TableCounts> ExpectedTableCounts(const Config& config, const ParameterSet& parameters,
                                             const Layout& layout);

}  // namespace overtok

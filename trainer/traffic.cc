#include "trainer/traffic.h"

#include <algorithm>
#include <cmath>

#include "losses/linear_cross_entropy.h"
#include "model/batch_view.h"
#include "optim/gradient_exchange.h"

namespace overtok {
namespace {

// How often a micro-batch is gathered or summed over a tensor group, each time [n, d]:
// in a block forward, the inputs of its two branches and their two outputs; backward, the gradients
// of the outputs, the inputs again, and the gradients of the inputs.
constexpr int64_t kForwardMoves = 4, kBackwardMoves = 6;
// The input embedding: its rows forward, their gradient backward. A head: its features and their
// gradient, as wide as its classes' rows are.
constexpr int64_t kEmbeddingMoves = 2, kHeadMoves = 2;

int64_t MicroBatches(const Config& config, const Layout& layout) {
  return config.train.batch_sequences / layout.data / config.train.micro_batch_sequences;
}

int64_t MicroBatchTokens(const Config& config) {
  return config.train.micro_batch_sequences * config.data.sequence_length;
}

int64_t WidthOf(const Config& config, HeadKind kind) {
  return IsHashed(kind) ? config.model.ngram_head->width : config.model.hidden_size;
}

// What a rank sends in AllReduceSum of so many values of eight bytes.
int64_t ReductionBytes(int64_t values, int64_t ranks) { return (ranks - 1) * values * 8; }

// Expected number of distinct rows that `draws` draws from `rows` rows name.
double Distinct(double rows, double draws) {
  return rows <= 1 ? std::min(rows, draws) : -rows * std::expm1(draws * std::log1p(-1 / rows));
}

}  // namespace

ActivationMoves MovesOfActivations(const Config& config, const Layout& layout) {
  ActivationMoves moves;
  if (layout.tensor == 1) return moves;
  const int64_t layers = config.model.num_hidden_layers;
  int64_t wide = layers * (kForwardMoves + kBackwardMoves) + kEmbeddingMoves;
  if (config.train.recompute == Recompute::kBlock) wide += (layers - 1) * kForwardMoves;
  int64_t calls = wide, elements = wide * config.model.hidden_size;
  for (const HeadKind kind : HeadsOf(config.model)) {
    calls += kHeadMoves;
    elements += kHeadMoves * WidthOf(config, kind);
  }
  const int64_t micro_batches = MicroBatches(config, layout);
  moves.calls = calls * micro_batches;
  moves.elements = elements * micro_batches * (MicroBatchTokens(config) / layout.tensor);
  return moves;
}

TrafficByKind TrafficOfRank(const Config& config, const ParameterSet& parameters,
                            const std::vector<Piece>& pieces, const Layout& layout,
                            std::span<const TableCounts> tables) {
  TrafficByKind traffic{};
  const auto at = [&](Traffic kind) -> int64_t& { return traffic[static_cast<size_t>(kind)]; };
  const StepTraffic dense = TrafficOfStep(pieces, layout);
  at(Traffic::kGradients) = dense.gradients;
  at(Traffic::kWeights) = dense.weights;

  at(Traffic::kActivations) = MovesOfActivations(config, layout).elements * (layout.tensor - 1) *
                              SizeOf(config.train.precision);
  const auto heads = static_cast<int64_t>(HeadsOf(config.model).size());
  const int64_t tokens = MicroBatches(config, layout) * MicroBatchTokens(config);
  at(Traffic::kLoss) = heads * LossBytesSent(tokens, layout.tensor);

  int64_t number = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_table()) continue;
    const TableCounts& counts = tables[static_cast<size_t>(number++)];
    at(Traffic::kTables) += TableBytesSent(counts, layout.world(), parameter.spec.shape[1],
                                           parameter.value.dtype(), /*training=*/true);
  }
  // Losses of all micro-batches of the batch, and the squares of the main head's log sums; rows
  // that every table counted.
  const int64_t sums =
      config.train.batch_sequences / config.train.micro_batch_sequences * (heads + 1);
  at(Traffic::kControl) =
      dense.control + ReductionBytes(sums, layout.data) + ReductionBytes(number, layout.world());
  return traffic;
}

std::vector<TableCounts> ExpectedTableCounts(const Config& config, const ParameterSet& parameters,
                                             const Layout& layout) {
  std::vector<TableCounts> counts;
  const ModelConfig& model = config.model;
  const double positions = static_cast<double>(config.tokens_per_step()) / layout.world();
  const double others = static_cast<double>(layout.world() - 1) / layout.world();
  for (const Parameter& parameter : parameters.all()) {
    if (!parameter.is_table()) continue;
    const auto rows = static_cast<double>(parameter.spec.shape[0]);
    double distinct = 0;
    if (parameter.spec.freezes) {  // an input table
      distinct = Distinct(rows, positions * (1 - model.ngram_embedding->row_dropout));
    } else {
      // Each block of windows scores as many classes as it has positions, divided among the tensor
      // ranks; its negatives are as good as random.
      const auto block = static_cast<double>(std::min(
          parameter.spec.shape[0], config.loss.block_sequences * config.data.sequence_length));
      const double blocks =
          std::max<double>(1, static_cast<double>(config.train.batch_sequences) /
                                  static_cast<double>(layout.data * config.loss.block_sequences));
      distinct = rows * (1 - std::pow(1 - block / rows, blocks)) / layout.tensor;
    }
    const auto asked = static_cast<int64_t>(std::llround(distinct * others));
    counts.push_back({.asked = asked, .served = asked});
  }
  return counts;
}

}  // namespace overtok

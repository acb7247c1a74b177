#include "trainer/predict.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/gradient_sum.h"
#include "losses/linear_cross_entropy.h"
#include "model/batch_view.h"
#include "trainer/config/derived.h"
#include "trainer/config/table_costs.h"

namespace overtok {
namespace {

// Bytes of passes over a parameter's f32 elements, all operands: gradient and momentum read,
// momentum and X written, X scaled, value updated by it; AdamH's two passes; Adam's one; and the
// norms read every gradient once.
constexpr double kMuonBytes = 36, kAdamHBytes = 40, kAdamBytes = 28, kNormBytes = 4;
constexpr double kAddBytes = 12;   // two read, one written
constexpr double kCopyBytes = 6;   // f32 read, bf16 written
constexpr double kLogitBytes = 8;  // the softmax reads and writes a tile once
// Buckets of the gradient exchange: how much of a rank's gradient, and of what one owner stages,
// closes one; two are in flight.
constexpr double kBucketBytes = 4 << 20, kStagedBytes = 16 << 20, kInFlight = 2;

class Predictor {
 public:
  Predictor(const Config& config, const ParameterSet& parameters, const std::vector<Piece>& pieces,
            const PredictedStep& step, const Hardware& hardware)
      : config_(config),
        model_(config.model),
        parameters_(parameters),
        pieces_(pieces),
        step_(step),
        hardware_(hardware),
        layout_(step.layout) {
    ranks_here_ = static_cast<double>(
        std::min<int64_t>(step.ranks_per_node, static_cast<int64_t>(layout_.world())));
    devices_ = hardware.divided ? static_cast<double>(hardware.devices) / ranks_here_ : 1;
    bandwidth_ = hardware.memory_bandwidth * devices_;
    if (hardware.node_memory_bandwidth > 0)
      bandwidth_ = std::min(bandwidth_, hardware.node_memory_bandwidth / ranks_here_);
    element_ = static_cast<double>(SizeOf(config.train.precision));
    tensor_ = layout_.tensor;
    tokens_ = static_cast<double>(config.tokens_per_step()) / layout_.data;
    micro_batches_ = tokens_ / static_cast<double>(config.train.micro_batch_sequences *
                                                   config.data.sequence_length);
    layers_ = static_cast<double>(model_.num_hidden_layers);
    again_ = config.train.recompute == Recompute::kBlock ? (layers_ - 1) / layers_ : 0;
  }

  StepPrediction Run() {
    out_.tokens = static_cast<double>(config_.tokens_per_step());
    Products();
    Passes();
    Gradients();
    OptimizerWork();
    Exchanges();
    return std::move(out_);
  }

 private:
  double Rate(const Rates& rates, DType dtype) const {
    return (dtype == DType::kBF16 ? rates.bf16 : rates.f32) * devices_;
  }
  double Compute(const char* name, double flops, double rate) {
    out_.computing.push_back({name, flops, 0, flops / rate});
    return flops / rate;
  }
  double Pass(const char* name, double bytes) {
    out_.computing.push_back({name, 0, bytes, bytes / bandwidth_});
    return bytes / bandwidth_;
  }

  void Products() {
    Config step = config_;
    step.loss.sampled_softmax.reset();
    if (step_.candidates < model_.vocab_size)
      step.loss.sampled_softmax = SampledSoftmaxConfig{{{1.0, step_.candidates}}};
    const ForwardFlops flops = ActualForwardFlops(step);
    const double each = tokens_ / tensor_, rate = Rate(hardware_.matmul, config_.train.precision);
    // The busiest rank's part of the classes.
    const Sharding classes{tensor_ == 1 ? Split::kWhole : layout_.vocabulary, layout_.tensor, 0, 1};
    busiest_ = step_.candidates < model_.vocab_size
                   ? 1
                   : static_cast<double>(LargestPart(classes, model_.vocab_size)) * tensor_ /
                         static_cast<double>(model_.vocab_size);
    double seconds = Compute("blocks: products", (3 + again_) * flops.matrices * each, rate);
    const AttentionRates attention =
        hardware_.AttentionOf(config_.train.precision, model_.head_dim);
    seconds += Compute("attention forward", (1 + again_) * flops.attention * each,
                       attention.forward * devices_);
    // Counted as twice the forward pass, as everywhere in FLOPs of a model; kernels do 5 products
    // to 2.
    seconds += Compute("attention backward", 2 * flops.attention * each,
                       attention.backward * devices_ * 2 / 2.5);
    const double heads = flops.head * busiest_ + flops.second_token_head + flops.ngram_head;
    heads_ = Compute("heads: products", 3 * heads * each, rate);
    seconds += heads_;
    if (flops.ngram_embedding > 0)
      seconds += Compute("input tables: products", 3 * flops.ngram_embedding * each, rate);
    // What a gradient on its way can hide behind: the last micro-batch's backward pass.
    last_backward_ = seconds * 2 / 3 / micro_batches_;
  }

  // Norms, residual sums, rotations, SwiGLU, softmax, lookups, casts.
  void Passes() {
    const auto d = static_cast<double>(model_.hidden_size);
    const auto m = static_cast<double>(model_.intermediate_size);
    const auto q = static_cast<double>(model_.num_attention_heads * model_.head_dim);
    const auto k = static_cast<double>(
        std::max<int64_t>(model_.num_key_value_heads, layout_.tensor) * model_.head_dim);
    const double hybrid = model_.hybrid_norm ? 1 : 0;
    const double forward = (8 + 2 * hybrid) * d + 2 * (q + k) + 3 * m;
    const double backward = (12 + 6 * hybrid) * d + 3 * (q + k) + 8 * m;
    const double each = tokens_ / tensor_;
    Pass("blocks: passes", layers_ * ((1 + again_) * forward + backward) * each * element_ +
                               10 * d * each * element_);
    double classes = 0;
    for (const HeadKind kind : HeadsOf(model_)) {
      const int64_t block = config_.loss.block_sequences * config_.data.sequence_length;
      classes += static_cast<double>(IsHashed(kind) ? std::min(ClassesOf(model_, kind), block)
                                                    : step_.candidates);
    }
    Pass("softmax", kLogitBytes * classes * each);
    if (tensor_ > 1) {
      // Every sum reads what all ranks have for a share and writes it.
      const ActivationMoves moves = MovesOfActivations(config_, layout_);
      Pass("sums over token shards",
           static_cast<double>(moves.elements) / 2 * (tensor_ + 1) * element_);
    }
  }

  // Zeroing the rows' gradients, and the sums of micro-batches.
  void Gradients() {
    double held = 0, zeroed = 0;
    for (const Parameter& parameter : parameters_.all()) {
      if (parameter.is_table()) continue;
      const double elements = HeldElements(parameter);
      held += elements;
      const bool looked_up = parameter.spec.name == "embed.weight";
      const bool sampled =
          parameter.spec.group == OptimizerGroup::kAdamH && step_.candidates < model_.vocab_size;
      if (looked_up || sampled) zeroed += elements;
    }
    const bool tree = config_.parallel.gradient_sum == GradientOrder::kTree;
    Pass("sums of micro-batches",
         micro_batches_ * zeroed * 4 + (tree ? (micro_batches_ - 1) * held * kAddBytes : 0));
  }

  // Of the largest part of it.
  double HeldElements(const Parameter& parameter) const {
    Sharding sharding = parameter.sharding;
    const Shape& shape = parameter.spec.shape;
    const int64_t n = DividedSize(sharding, shape);
    return static_cast<double>(shape.elements()) * static_cast<double>(LargestPart(sharding, n)) /
           static_cast<double>(n);
  }

  void OptimizerWork() {
    const auto ranks = static_cast<size_t>(layout_.world());
    std::vector<double> flops(ranks), bytes(ranks);
    for (const Piece& piece : pieces_) {
      const auto owner = static_cast<size_t>(piece.owner);
      const auto count = static_cast<double>(piece.count);
      const Shape& shape = piece.parameter->spec.shape;
      const OptimizerGroup group = piece.parameter->spec.group;
      double each = kNormBytes;
      each += group == OptimizerGroup::kMuonH   ? kMuonBytes
              : group == OptimizerGroup::kAdamH ? kAdamHBytes
                                                : kAdamBytes;
      // Contributions read and their sum written.
      const double holders = static_cast<double>(layout_.data * piece.parameter->replicas);
      if (holders > 1) each += 4 * (holders + 1);
      bytes[owner] += count * each;
      if (group == OptimizerGroup::kMuonH) {
        flops[owner] +=
            2 * OrthogonalisationCost(shape[0], shape[1], config_.optimizer.newton_schulz.steps);
      }
    }
    const NewtonSchulzConfig::Precision precision = config_.optimizer.newton_schulz.precision;
    const double rate = precision == NewtonSchulzConfig::Precision::kTF32
                            ? hardware_.matmul_tf32 * devices_
                            : Rate(hardware_.matmul, StorageType(precision));
    size_t busiest = 0;
    const auto seconds = [&](size_t rank) { return flops[rank] / rate + bytes[rank] / bandwidth_; };
    for (size_t rank = 1; rank < ranks; ++rank) {
      if (seconds(rank) > seconds(busiest)) busiest = rank;
    }
    newton_schulz_ = Compute("Newton-Schulz, busiest rank", flops[busiest], rate);
    Pass("optimizer passes, busiest rank", bytes[busiest]);
    if (config_.train.precision == DType::kBF16) {
      double copied = 0;
      for (const Parameter& parameter : parameters_.all()) {
        const bool gathered =
            parameter.spec.group == OptimizerGroup::kAdamH && step_.candidates < model_.vocab_size;
        const bool copy = !parameter.is_table() && parameter.compute.dtype() == DType::kBF16;
        if (copy && !gathered) copied += HeldElements(parameter);
      }
      Pass("bf16 copies", copied * kCopyBytes);
    }
    if (const TableTotals tables = TotalOf(TableCosts(config_)); tables.step_bytes > 0)
      Pass("hashed tables", static_cast<double>(tables.step_bytes) / layout_.world());
  }

  struct Group {
    double size = 1, within = 1;  // ranks of it, and of these on the same node
  };
  // The others of a group: `bytes` of them over both links at once, `messages` one after the other.
  double Transfer(const Group& group, double bytes, double messages) const {
    if (group.size <= 1) return 0;
    const double near = (group.within - 1) / (group.size - 1);
    double seconds = near * bytes / hardware_.within.bandwidth;
    double latency = hardware_.within.latency;
    if (near < 1) {
      seconds = std::max(seconds, (1 - near) * bytes / hardware_.between.bandwidth);
      latency = std::max(latency, hardware_.between.latency);
    }
    return seconds + messages * latency;
  }

  void Add(const char* name, Traffic kind, double seconds, double behind) {
    const auto bytes = static_cast<double>(step_.sent[static_cast<size_t>(kind)]);
    if (bytes == 0) return;
    PredictedPart part{name, 0, bytes, seconds};
    part.hidden = std::min(hardware_.overlap * seconds, behind);
    out_.exchanges.push_back(part);
  }

  void Exchanges() {
    const auto sent = [&](Traffic kind) {
      return static_cast<double>(step_.sent[static_cast<size_t>(kind)]);
    };
    const double world = layout_.world();
    const Group all{world, ranks_here_};
    const Group tensor{tensor_, std::min(tensor_, ranks_here_)};
    const Group data{static_cast<double>(layout_.data), std::max(1.0, ranks_here_ / tensor_)};
    const Group holders = layout_.data > 1 ? data : all;
    Add("gradients", Traffic::kGradients, GradientSeconds(holders), last_backward_);
    if (!out_.exchanges.empty())
      out_.exchanges.back().even_seconds = Transfer(holders, sent(Traffic::kGradients), 0);
    const double rounds = std::ceil(static_cast<double>(pieces_.size()) / world / 8);
    Add("weights", Traffic::kWeights, Transfer(holders, sent(Traffic::kWeights), rounds),
        newton_schulz_);
    Add("activations", Traffic::kActivations,
        Transfer(tensor, sent(Traffic::kActivations),
                 static_cast<double>(MovesOfActivations(config_, layout_).calls)),
        0);
    const double heads = static_cast<double>(HeadsOf(model_).size());
    // Two tiles of a micro-batch at least; one is multiplied while the other's figures travel.
    Add("loss", Traffic::kLoss, Transfer(tensor, sent(Traffic::kLoss), 2 * heads * micro_batches_),
        heads_ / 2);
    const auto tables = static_cast<double>(TableCosts(config_).size());
    Add("tables", Traffic::kTables, Transfer(all, sent(Traffic::kTables), 4 * tables), 0);
    Add("control", Traffic::kControl,
        Transfer(all, sent(Traffic::kControl), 4 * std::ceil(std::log2(std::max(2.0, world)))), 0);
  }

  // A matrix has one owner, which receives it from all others: as long as few matrices travel at
  // once, few owners' links are busy.
  double GradientSeconds(const Group& group) const {
    double owners = 0, buckets = 0, received_max = 0;
    std::vector<double> received(static_cast<size_t>(layout_.world()));
    for (const Piece& piece : pieces_) {
      const auto count = static_cast<double>(piece.count);
      const double holders = static_cast<double>(layout_.data * piece.parameter->replicas);
      const double bytes = 4 * count * (holders - 1);
      received[static_cast<size_t>(piece.owner)] += bytes;
      if (piece.part >= 0 || bytes <= 0) continue;
      const double held = 4 * HeldElements(*piece.parameter);
      const double rounds =
          std::max({1.0, std::ceil(held / kBucketBytes), std::ceil(bytes / kStagedBytes)});
      const double together = rounds > 1 ? 1 : std::max(1.0, std::floor(kBucketBytes / held));
      owners += bytes / std::min<double>(kInFlight * together, layout_.world());
      buckets += rounds / together;
    }
    for (const double bytes : received) received_max = std::max(received_max, bytes);
    const double sent = static_cast<double>(step_.sent[static_cast<size_t>(Traffic::kGradients)]);
    return Transfer(group, std::max({sent, received_max, owners}), buckets);
  }

  const Config& config_;
  const ModelConfig& model_;
  const ParameterSet& parameters_;
  const std::vector<Piece>& pieces_;
  const PredictedStep& step_;
  const Hardware& hardware_;
  const Layout layout_;
  double ranks_here_ = 1, devices_ = 1, bandwidth_ = 0;
  double element_ = 4, tensor_ = 1, tokens_ = 0, micro_batches_ = 1, layers_ = 1, again_ = 0;
  double busiest_ = 1, last_backward_ = 0, newton_schulz_ = 0, heads_ = 0;
  StepPrediction out_;
};

}  // namespace

double StepPrediction::exchange_seconds() const {
  double seconds = 0;
  for (const PredictedPart& part : exchanges) seconds += part.exposed();
  return seconds;
}

double StepPrediction::seconds() const {
  double seconds = exchange_seconds();
  for (const PredictedPart& part : computing) seconds += part.seconds;
  return seconds;
}

StepPrediction PredictStep(const Config& config, const ParameterSet& parameters,
                           const std::vector<Piece>& pieces, const PredictedStep& step,
                           const Hardware& hardware) {
  return Predictor(config, parameters, pieces, step, hardware).Run();
}

}  // namespace overtok

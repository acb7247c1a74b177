#include "trainer/plan_ranks.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/console.h"
#include "losses/candidate_shard.h"
#include "model/batch_view.h"
#include "trainer/checkpoint.h"
#include "trainer/layout.h"
#include "trainer/table_memory.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// All ranks are looked at up to so many.
constexpr int kMostRanks = 64;
// Labels that the candidates of real text are counted over: those of one step, at most.
constexpr int64_t kMostLabels = int64_t{1} << 20;

std::vector<int> RanksToLookAt(const Layout& layout, int ranks_per_node) {
  const bool all = layout.world() <= kMostRanks;
  std::vector<int> ranks(static_cast<size_t>(
      all ? layout.world() : std::max(layout.tensor, std::min(ranks_per_node, kMostRanks))));
  std::iota(ranks.begin(), ranks.end(), 0);
  if (all) return ranks;
  for (const int data : {layout.data / 2, layout.data - 1}) {
    for (int tensor = 0; tensor < layout.tensor; ++tensor) {
      const int rank = layout.RankOf(data, tensor);
      if (rank > ranks.back()) ranks.push_back(rank);
    }
  }
  return ranks;
}

int64_t FirstCandidates(const Config& config) {
  if (!config.loss.sampled_softmax) return config.model.vocab_size;
  const auto& stages = config.loss.sampled_softmax->stages;
  return stages.empty() ? config.model.vocab_size : stages.front().candidates;
}

Sharding ClassesOfRanks(const Layout& layout) {
  return {layout.tensor == 1 ? Split::kWhole : layout.vocabulary, layout.tensor, 0, 1};
}

double BusiestClasses(const Config& config, const Layout& layout) {
  const int64_t classes = config.model.vocab_size;
  return static_cast<double>(LargestPart(ClassesOfRanks(layout), classes)) * layout.tensor /
         static_cast<double>(classes);
}

// Of the candidates that the first windows of the run's order make.
absl::StatusOr<double> BusiestCandidates(LoadedConfig* loaded, const Layout& layout) {
  OT_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(loaded));
  const Config& config = loaded->config;
  const int64_t length = config.data.sequence_length, size = config.loss.block_sequences;
  const int64_t blocks =
      std::clamp<int64_t>(kMostLabels / (size * length), 1, config.train.batch_sequences / size);
  std::vector<uint32_t> tokens(static_cast<size_t>(blocks * size * length)), labels;
  std::vector<float> weights(tokens.size());
  std::vector<int32_t> segments(tokens.size());
  for (int64_t s = 0; s < blocks * size; ++s) {
    OT_RETURN_IF_ERROR(
        data.corpus->Read(data.order.Window(s) * length, length, tokens.data() + s * length));
  }
  BatchView batch;
  batch.sequences = blocks * size;
  batch.length = length;
  batch.tokens = tokens.data();
  batch.segments = segments.data();
  batch.loss_weight = weights.data();
  labels.resize(tokens.size());
  FillTargets(config.model, HeadKind::kMain, batch, labels.data());
  CandidateOptions options;
  options.classes = config.model.vocab_size;
  options.correction = config.loss.sampled_softmax->correction;
  options.negatives = config.loss.sampled_softmax->negatives;
  options.seed = config.train.seed;
  options.head = NameOf(HeadKind::kMain);
  return BusiestShare(labels, blocks, FirstCandidates(config), options, ClassesOfRanks(layout));
}

// The steps to predict: stages of the run, or where its length is not known those of its fractions.
std::vector<StageSpan> StagesToPredict(const Config& config) {
  if (config.train.steps > 0) return Stages(config);
  std::vector<StageSpan> spans;
  if (config.loss.sampled_softmax) {
    for (const SampledStage& stage : config.loss.sampled_softmax->stages)
      spans.push_back({0, 0, stage.candidates});
  }
  if (spans.empty() || config.loss.sampled_softmax->stages.back().until < 1)
    spans.push_back({0, 0, config.model.vocab_size});
  return spans;
}

void CheckMachine(const Hardware& hardware, RanksPlan* plan) {
  // Host memory beside GPUs is none of theirs.
  const auto on_device = [](const PlannedRankCosts& rank) {
    const MemoryPlan& memory = rank.memory;
    return memory.device == DeviceKind::kCuda ? memory.purposes() : memory.total();
  };
  const PlannedRankCosts& fullest =
      *std::max_element(plan->ranks.begin(), plan->ranks.end(),
                        [&](const PlannedRankCosts& a, const PlannedRankCosts& b) {
                          return on_device(a) < on_device(b);
                        });
  const auto largest = static_cast<double>(on_device(fullest));
  const auto text = [](double bytes) { return FormatBytes(static_cast<int64_t>(bytes)); };
  if (hardware.memory > 0 && largest > hardware.memory) {
    plan->does_not_fit.push_back(absl::StrCat("rank ", fullest.rank, " takes ", text(largest),
                                              ", a device of the machine has ",
                                              text(hardware.memory)));
  }
  if (hardware.node_memory > 0 && plan->node_memory > hardware.node_memory) {
    plan->does_not_fit.push_back(absl::StrCat("the ranks of a node take ", text(plan->node_memory),
                                              ", a node of the machine has ",
                                              text(hardware.node_memory)));
  }
}

// The largest and the busiest rank, means, the fullest node, the checkpoint of all.
void Summarise(RanksPlan* plan) {
  const auto count = static_cast<double>(plan->ranks.size());
  for (size_t r = 0; r < plan->ranks.size(); ++r) {
    const PlannedRankCosts& costs = plan->ranks[r];
    if (costs.memory.total() > plan->ranks[plan->largest].memory.total()) plan->largest = r;
    if (costs.sent_in_all() > plan->ranks[plan->busiest].sent_in_all()) plan->busiest = r;
    for (size_t p = 0; p < plan->mean.size(); ++p)
      plan->mean[p] += static_cast<double>(costs.memory.by_purpose[p]) / count;
    plan->mean_memory += static_cast<double>(costs.memory.total()) / count;
    plan->checkpoint += costs.memory.checkpoint;
  }
  // The first ranks own the largest matrices, so that of many nodes the first is the fullest.
  const auto node = static_cast<size_t>(plan->ranks_per_node);
  for (size_t first = 0; first + node <= plan->ranks.size(); first += node) {
    double bytes = 0;
    for (size_t r = first; r < first + node; ++r)
      bytes += static_cast<double>(plan->ranks[r].memory.total());
    const bool whole =
        plan->ranks[first + node - 1].rank - plan->ranks[first].rank + 1 == plan->ranks_per_node;
    if (whole) plan->node_memory = std::max(plan->node_memory, bytes);
  }
  if (plan->node_memory == 0) plan->node_memory = plan->mean_memory * plan->ranks_per_node;
  const int world = plan->layout.world();
  if (static_cast<int>(plan->ranks.size()) == world) return;
  // Everything once, and what every rank's file has beside it.
  plan->checkpoint =
      PlanMemory(plan->config, 0).checkpoint + (world - 1) * CheckpointStore::Bytes({}, {});
}

absl::Status ChooseNodes(const RanksOptions& options, int* ranks_per_node) {
  *ranks_per_node = options.ranks_per_node;
  if (options.ranks_per_node == 0) {
    const bool devices = options.hardware && !options.hardware->divided;
    *ranks_per_node =
        devices ? static_cast<int>(std::min<int64_t>(options.ranks, options.hardware->devices))
                : options.ranks;
  }
  if (*ranks_per_node < 1 || options.ranks % *ranks_per_node != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ranks ", options.ranks, " does not fill whole nodes of ", *ranks_per_node,
                     " ranks; choose a multiple, or --ranks-per-node"));
  }
  if (options.hardware && !options.hardware->divided &&
      *ranks_per_node > options.hardware->devices) {
    return absl::InvalidArgumentError(absl::StrCat("--ranks-per-node ", *ranks_per_node,
                                                   " is more than the ", options.hardware->devices,
                                                   " devices of a node (node.devices)"));
  }
  if (options.hardware && options.ranks > *ranks_per_node &&
      options.hardware->between.bandwidth == 0) {
    return absl::InvalidArgumentError(
        "several nodes need network.link.bandwidth and network.link.latency of the machine");
  }
  return absl::OkStatus();
}

}  // namespace

int64_t PlannedRankCosts::sent_in_all() const {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0});
}

absl::StatusOr<RanksPlan> PlanRanks(LoadedConfig loaded, const RanksOptions& options) {
  RanksPlan plan;
  OT_RETURN_IF_ERROR(ChooseNodes(options, &plan.ranks_per_node));
  OT_RETURN_IF_ERROR(CheckLayout(loaded, options.ranks));
  int64_t windows = 0;
  if (loaded.config.data.train.empty()) {
    plan.corpus_problem = "data.train names no shards";
  } else if (const auto data = OpenTrainingData(&loaded); data.ok()) {
    windows = data->windows;
  } else {
    plan.corpus_problem = std::string(data.status().message());
  }
  const Config& config = plan.config = loaded.config;
  const auto tensor = static_cast<int>(config.parallel.tensor);
  plan.layout = Layout::Of(options.ranks, 0, tensor, config.parallel.vocabulary_map);
  plan.micro_batches = MicroBatchesOf(config, options.ranks);
  plan.layout_warning = LayoutWarning(config, options.ranks);
  plan.busiest_classes = BusiestClasses(config, plan.layout);
  if (tensor > 1 && plan.corpus_problem.empty() &&
      FirstCandidates(config) < config.model.vocab_size) {
    OT_ASSIGN_OR_RETURN(plan.busiest_candidates, BusiestCandidates(&loaded, plan.layout));
  }

  Memory dry(Memory::Mode::kDry);
  const Mesh mesh(plan.layout);
  TrainStep train(config, &mesh, &dry);
  const std::vector<Piece> pieces = AssignPieces(train.parameters(), plan.layout);
  plan.tables_estimated = options.ranks > 1 && !train.model().ngram_parameters().empty();
  for (const Parameter& parameter : train.parameters().all())
    plan.tables_estimated |= options.ranks > 1 && parameter.is_table();
  for (const int rank : RanksToLookAt(plan.layout, plan.ranks_per_node)) {
    const Layout layout = Layout::Of(options.ranks, rank, tensor, config.parallel.vocabulary_map);
    PlannedRankCosts& costs = plan.ranks.emplace_back();
    costs.rank = rank;
    Config placed = config;
    if (options.hardware && options.hardware->memory > 0)
      PlaceTablesOfTraining(static_cast<int64_t>(options.hardware->memory), layout, &placed);
    costs.memory = PlanMemory(placed, windows, layout);
    costs.tables = TableCosts(placed);
    costs.sent = TrafficOfRank(config, train.parameters(), pieces, layout,
                               ExpectedTableCounts(config, train.parameters(), layout));
  }
  Summarise(&plan);
  plan.hardware = options.hardware;
  plan.tables_placed =
      TablesArePlaced(config) || (options.hardware && options.hardware->memory > 0);
  if (!options.hardware) return plan;

  CheckMachine(*options.hardware, &plan);
  for (const StageSpan& span : StagesToPredict(config)) {
    PredictedStep step;
    step.layout = plan.layout;
    step.ranks_per_node = plan.ranks_per_node;
    step.candidates = span.candidates;
    step.sent = plan.ranks[plan.busiest].sent;
    plan.stages.push_back(
        {span, PredictStep(config, train.parameters(), pieces, step, *options.hardware)});
  }
  return plan;
}

}  // namespace overtok

#include "trainer/plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "core/console.h"
#include "core/io/files.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_saver.h"
#include "trainer/evaluator.h"
#include "trainer/machine.h"
#include "trainer/open_device.h"
#include "trainer/table_memory.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// The program's code and libraries, their heaps, thread stacks.
constexpr int64_t kProgramBytes = int64_t{96} << 20;
// What MPI adds to a rank: its library and the memory that it shares with others.
constexpr int64_t kMpiBytes = int64_t{32} << 20;

std::string ListPurposes(const MemoryPlan& plan) {
  std::string text;
  for (int p = 0; p < kPurposes; ++p) {
    const int64_t bytes = plan.by_purpose[static_cast<size_t>(p)];
    if (bytes == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", NameOf(static_cast<Purpose>(p)), " ",
                    FormatBytes(bytes));
  }
  absl::StrAppend(&text, ", host ", FormatBytes(plan.host));
  return text;
}

}  // namespace

int64_t MemoryPlan::purposes() const {
  return std::accumulate(by_purpose.begin(), by_purpose.end(), int64_t{0});
}

MemoryPlan PlanMemory(const Config& config, int64_t windows, const Layout& layout) {
  Memory memory(Memory::Mode::kDry, PlannedDevice(config.train.device, config.train.attention));
  const Mesh mesh(layout);
  TrainStep train(config, &mesh, &memory);
  std::unique_ptr<Evaluator> evaluator;
  if (config.eval.enabled()) {
    evaluator =
        std::make_unique<Evaluator>(config, train.model(), &train.parameters(), &mesh, &memory);
  }
  const std::vector<ShardedTensor> values = train.optimizer().owned_values();
  const CheckpointSaver saver(nullptr, values, train.optimizer().state(),
                              config.checkpoint.background, &train.context(), &memory);
  train.Commit();
  MemoryPlan plan;
  for (int p = 0; p < kPurposes; ++p) {
    plan.by_purpose[static_cast<size_t>(p)] = memory.bytes(static_cast<Purpose>(p));
  }
  // The loader's batches: ids, segments and weights, 4 bytes each; one of them is in use.
  const int64_t batches = LoaderOptions().depth + 1;
  plan.program = kProgramBytes + (layout.world() > 1 ? kMpiBytes : 0);
  plan.device = config.train.device;
  plan.host = memory.host_bytes() + plan.program + batches * config.tokens_per_step() * 12 +
              windows * static_cast<int64_t>(sizeof(uint32_t));
  const TableTotals tables = TotalOf(TableCosts(config));
  plan.tables = tables.value_bytes + tables.state_bytes;
  plan.checkpoint = CheckpointStore::Bytes(values, train.optimizer().state());
  return plan;
}

void PlaceTablesOfTraining(int64_t device_bytes, const Layout& layout, Config* config) {
  const auto needed = [&](const Config& placed) {
    return PlanMemory(placed, /*windows=*/0, layout).purposes();
  };
  PlaceTables(device_bytes, needed, config);
}

absl::Status CheckMemoryFits(const MemoryPlan& plan, int ranks_here, const Device* device) {
  const bool on_gpu = plan.device == DeviceKind::kCuda;
  if (on_gpu && device != nullptr && plan.purposes() > device->free_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the run needs ", FormatBytes(plan.purposes()), " of the GPU's memory, ",
        FormatBytes(device->free_bytes()), " of ", FormatBytes(device->total_bytes()),
        " are free. It takes: ", ListPurposes(plan),
        ". A smaller train.micro_batch_sequences or train.recompute=block needs less for "
        "activations, another optimizer.tables.storage, second_moment or beta1 less for tables."));
  }
  const AvailableMemory available = FindAvailableMemory();
  const int64_t needed = (on_gpu ? plan.host : plan.total()) * ranks_here;
  if (available.bytes < 0 || needed <= available.bytes) return absl::OkStatus();
  const std::string tables =
      plan.tables == 0
          ? ""
          : absl::StrCat(
                " Hashed tables take ", FormatBytes(plan.tables),
                " of it: fewer rows (model.ngram_embedding.rows, model.ngram_head.rows) or "
                "another optimizer.tables.storage, second_moment, beta1 or update need "
                "less; `overtok plan` lists them.");
  return absl::ResourceExhaustedError(absl::StrCat(
      "the run needs ", FormatBytes(needed), " of memory",
      ranks_here == 1 ? "" : absl::StrCat(" for the ", ranks_here, " ranks of this machine"), ", ",
      FormatBytes(available.bytes), " are available here (", available.source,
      "). A rank takes: ", ListPurposes(plan),
      ". A smaller train.micro_batch_sequences or train.recompute=block needs less for "
      "activations.",
      tables));
}

Config WithoutMethods(Config config) {
  config.model.ngram_embedding.reset();
  config.model.second_token_head.reset();
  config.model.ngram_head.reset();
  config.loss.sampled_softmax.reset();
  config.loss.focal_gamma = 0;
  return config;
}

namespace {

bool HasMethods(const Config& config) {
  const ModelConfig& model = config.model;
  return model.ngram_embedding || model.second_token_head || model.ngram_head ||
         config.loss.sampled_softmax || config.loss.focal_gamma > 0;
}

MethodCosts CostsOfMethods(const Plan& plan) {
  const Config bare = WithoutMethods(plan.config);
  const MemoryPlan memory = PlanMemory(bare, plan.windows.value_or(0));
  MethodCosts costs;
  costs.parameters = plan.parameters.total() - plan.parameters.baseline();
  costs.memory = plan.memory.total() - memory.total();
  costs.checkpoint = plan.memory.checkpoint - memory.checkpoint;
  costs.forward_flops = plan.actual_flops.total() - plan.causal_flops.total();
  costs.relative_training = plan.actual_flops.training() / plan.causal_flops.training();
  return costs;
}

// Tokens that the run reads before it reads one again; none: not known.
std::optional<double> UniqueTokens(const Config& config, int64_t windows) {
  const double batches = BatchesPerPass(config, windows);
  if (!(batches > 0)) return std::nullopt;
  const double steps = config.train.steps > 0 ? static_cast<double>(config.train.steps) : batches;
  return std::min(batches, steps) * static_cast<double>(config.tokens_per_step());
}

}  // namespace

absl::StatusOr<Plan> MakePlan(LoadedConfig loaded) {
  Plan plan;
  const Config& config = loaded.config;
  if (config.data.train.empty()) {
    plan.corpus_problem = "data.train names no shards";
  } else {
    const absl::StatusOr<TrainingData> data = OpenTrainingData(&loaded);
    if (data.ok()) {
      plan.corpus_tokens = data->corpus->tokens();
      plan.windows = data->windows;
      plan.passes = PassesOverData(config, data->windows);
    } else {
      plan.corpus_problem = std::string(data.status().message());
    }
  }
  plan.config = config;
  plan.warnings = loaded.warnings;
  plan.parameters = CountParameters(config.model);
  plan.memory = PlanMemory(config, plan.windows.value_or(0));
  plan.flops = LevanterForwardFlops(config.model, config.data.sequence_length);
  plan.causal_flops = CausalForwardFlops(config.model, config.data.sequence_length);
  plan.actual_flops = ActualForwardFlops(config);
  plan.tokens = TotalTokens(config);
  if (config.train.steps > 0) plan.stages = Stages(config);
  plan.tables = TableCosts(config);
  plan.tables_placed = TablesArePlaced(config);
  if (!plan.tables.empty()) plan.table_options = TableOptions(config);
  const std::optional<double> unique = UniqueTokens(config, plan.windows.value_or(0));
  if (unique && plan.parameters.ngram_tables > 0) {
    plan.table_parameters_per_token = static_cast<double>(plan.parameters.ngram_tables) / *unique;
  }
  if (HasMethods(config)) plan.methods = CostsOfMethods(plan);
  const auto tokens = static_cast<double>(plan.tokens);
  plan.training_flops = plan.flops.training() * tokens;
  plan.causal_training_flops = plan.causal_flops.training() * tokens;
  plan.actual_training_flops = plan.actual_flops.training() * tokens;
  plan.backbone_flops = BackboneFlops(config.model, tokens);
  // A new checkpoint is complete before the oldest goes.
  plan.disk = plan.memory.checkpoint * (config.checkpoint.keep + 1);
  const absl::Status memory = CheckMemoryFits(plan.memory);
  if (!memory.ok()) plan.does_not_fit.emplace_back(memory.message());
  if (!config.checkpoint.directory.empty()) {
    const absl::Status disk = CheckFreeSpace(config.checkpoint.directory, plan.disk);
    if (!disk.ok()) plan.does_not_fit.emplace_back(disk.message());
  }
  return plan;
}

}  // namespace overtok

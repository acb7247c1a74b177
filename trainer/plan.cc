#include "trainer/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_format.h"
#include "core/comm/communicator.h"
#include "core/console.h"
#include "core/io/files.h"
#include "trainer/checkpoint.h"
#include "trainer/evaluator.h"
#include "trainer/machine.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// The program's code and libraries, their heaps, thread stacks.
constexpr int64_t kProgramBytes = int64_t{96} << 20;

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

std::string Line(absl::string_view name, absl::string_view value, absl::string_view note = "") {
  return absl::StrFormat("  %-22s %14s  %s\n", name, value, note);
}

std::string Share(double part, double whole) {
  return absl::StrFormat("%.1f %%", 100 * part / whole);
}

std::string Flops(double value) { return absl::StrFormat("%.5g", value); }

std::string FlopsSection(absl::string_view title, const ForwardFlops& flops, double run) {
  std::string text = absl::StrCat(title, "\n");
  absl::StrAppend(
      &text, Line("blocks", FormatCount(flops.matrices), Share(flops.matrices, flops.total())),
      Line("attention", FormatCount(flops.attention), Share(flops.attention, flops.total())),
      Line("head", FormatCount(flops.head), Share(flops.head, flops.total())),
      Line("forward", FormatCount(flops.total())),
      Line("training", FormatCount(flops.training()), "forward and backward"));
  if (run > 0) absl::StrAppend(&text, Line("whole run", Flops(run)));
  return text;
}

nlohmann::ordered_json FlopsJson(const ForwardFlops& flops, double run) {
  return {{"blocks", flops.matrices}, {"attention", flops.attention}, {"head", flops.head},
          {"forward", flops.total()}, {"training", flops.training()}, {"run", run}};
}

}  // namespace

int64_t MemoryPlan::total() const {
  return std::accumulate(by_purpose.begin(), by_purpose.end(), host);
}

MemoryPlan PlanMemory(const Config& config, int64_t windows) {
  Memory memory(Memory::Mode::kDry);
  const std::unique_ptr<Communicator> communicator = OneRank();
  TrainStep train(config, &memory, communicator.get());
  std::unique_ptr<Evaluator> evaluator;
  if (config.eval.enabled()) {
    evaluator = std::make_unique<Evaluator>(config, train.model(), &train.parameters(), &memory);
  }
  train.Commit();
  MemoryPlan plan;
  for (int p = 0; p < kPurposes; ++p) {
    plan.by_purpose[static_cast<size_t>(p)] = memory.bytes(static_cast<Purpose>(p));
  }
  // The loader's batches: ids, segments and weights, 4 bytes each; one of them is in use.
  const int64_t batches = LoaderOptions().depth + 1;
  plan.host = kProgramBytes + batches * config.tokens_per_step() * 12 +
              windows * static_cast<int64_t>(sizeof(uint32_t));
  plan.checkpoint = CheckpointStore::Bytes(train.parameters(), train.optimizer().state());
  return plan;
}

absl::Status CheckMemoryFits(const MemoryPlan& plan) {
  const AvailableMemory available = FindAvailableMemory();
  if (available.bytes < 0 || plan.total() <= available.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the run needs ", FormatBytes(plan.total()), " of memory, ", FormatBytes(available.bytes),
      " are available here (", available.source, "). It takes: ", ListPurposes(plan),
      ". A smaller train.micro_batch_sequences or train.recompute=block needs less for "
      "activations."));
}

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
  plan.parameters = CountParameters(config.model);
  plan.memory = PlanMemory(config, plan.windows.value_or(0));
  plan.flops = LevanterForwardFlops(config.model, config.data.sequence_length);
  plan.causal_flops = CausalForwardFlops(config.model, config.data.sequence_length);
  plan.tokens = TotalTokens(config);
  const auto tokens = static_cast<double>(plan.tokens);
  plan.training_flops = plan.flops.training() * tokens;
  plan.causal_training_flops = plan.causal_flops.training() * tokens;
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

std::string Plan::ToText() const {
  std::string text = "parameters\n";
  const auto count = [](int64_t n) { return absl::StrFormat("%d", n); };
  absl::StrAppend(
      &text, Line("muonh", count(parameters.muonh()), "matrices of the blocks: N of 6ND"),
      Line("adamh", count(parameters.adamh()),
           config.model.tie_word_embeddings ? "the head is the token embedding" : "lm_head"),
      Line("adam", count(parameters.adam()), "token embedding, norm gains"),
      Line("total", count(parameters.total())));
  absl::StrAppend(&text, "memory of a training run\n");
  for (int p = 0; p < kPurposes; ++p) {
    absl::StrAppend(&text, Line(NameOf(static_cast<Purpose>(p)),
                                FormatBytes(memory.by_purpose[static_cast<size_t>(p)])));
  }
  absl::StrAppend(&text, Line("host", FormatBytes(memory.host), "program, batches read ahead"),
                  Line("total", FormatBytes(memory.total())));
  absl::StrAppend(&text, FlopsSection("FLOPs per token, as levanter counts (full attention)", flops,
                                      training_flops));
  absl::StrAppend(&text, FlopsSection("FLOPs per token, causal attention", causal_flops,
                                      causal_training_flops));
  absl::StrAppend(&text, "run\n");
  if (tokens > 0) {
    absl::StrAppend(&text, Line("steps", count(config.train.steps)),
                    Line("tokens (D)", count(tokens), FormatCount(static_cast<double>(tokens))),
                    Line("6ND", Flops(backbone_flops)));
  } else {
    absl::StrAppend(&text, Line("steps", "?", "train.passes_over_data needs the corpus"));
  }
  if (windows.has_value()) {
    absl::StrAppend(&text, Line("tokens of the corpus", count(*corpus_tokens)),
                    Line("windows of the corpus", count(*windows)),
                    Line("passes over the data", absl::StrFormat("%.4g", passes)));
  } else {
    absl::StrAppend(&text, Line("passes over the data", "?", "the corpus cannot be read: "), "    ",
                    corpus_problem, "\n");
  }
  absl::StrAppend(
      &text, "disk\n", Line("one checkpoint", FormatBytes(memory.checkpoint)),
      Line("in all", FormatBytes(disk),
           absl::StrCat("checkpoint.keep + 1 = ", config.checkpoint.keep + 1, " while saving")));
  for (const std::string& problem : does_not_fit) {
    absl::StrAppend(&text, "DOES NOT FIT: ", problem, "\n");
  }
  return text;
}

std::string Plan::ToJson() const {
  nlohmann::ordered_json json;
  json["parameters"] = {{"muonh", parameters.muonh()},
                        {"adamh", parameters.adamh()},
                        {"adam", parameters.adam()},
                        {"total", parameters.total()}};
  json["memory_bytes"] = nlohmann::ordered_json::object();
  for (int p = 0; p < kPurposes; ++p) {
    json["memory_bytes"][NameOf(static_cast<Purpose>(p))] =
        memory.by_purpose[static_cast<size_t>(p)];
  }
  json["memory_bytes"]["host"] = memory.host;
  json["memory_bytes"]["total"] = memory.total();
  json["flops_per_token"] = FlopsJson(flops, training_flops);
  json["flops_per_token_causal"] = FlopsJson(causal_flops, causal_training_flops);
  json["run"] = {{"steps", config.train.steps}, {"tokens", tokens}, {"6nd", backbone_flops}};
  if (windows.has_value()) {
    json["corpus"] = {{"tokens", *corpus_tokens}, {"windows", *windows}, {"passes", passes}};
  } else {
    json["corpus"] = {{"problem", corpus_problem}};
  }
  json["disk_bytes"] = {{"checkpoint", memory.checkpoint}, {"total", disk}};
  json["does_not_fit"] = does_not_fit;
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace overtok

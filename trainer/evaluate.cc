#include "trainer/evaluate.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/memory.h"
#include "trainer/checkpoint.h"
#include "trainer/config/derived.h"
#include "trainer/evaluator.h"
#include "trainer/plan.h"
#include "trainer/run_directory.h"
#include "trainer/run_identity.h"

namespace overtok {
namespace {

// A model without gradients and optimizer, and what evaluates it.
struct EvaluationModel {
  EvaluationModel(const Config& config, Memory* memory)
      : context(CpuContext()),
        parameters(memory, config.train.precision, /*with_gradients=*/false),
        model(config.model, config.loss, OptionsOf(config), &parameters, memory),
        evaluator(config, &model, &parameters, memory) {
    memory->Commit(&context);
  }
  static TransformerOptions OptionsOf(const Config& config) {
    TransformerOptions options;
    options.pass = Evaluator::PassOf(config);
    options.act = config.train.precision;
    options.training = false;
    return options;
  }
  Context context;
  ParameterSet parameters;
  Transformer model;
  Evaluator evaluator;
};

absl::Status CheckFits(const Config& config) {
  Memory memory(Memory::Mode::kDry);
  const EvaluationModel model(config, &memory);
  MemoryPlan plan;
  for (int p = 0; p < kPurposes; ++p) {
    plan.by_purpose[static_cast<size_t>(p)] = memory.bytes(static_cast<Purpose>(p));
  }
  return CheckMemoryFits(plan);
}

std::string Cell(const std::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%10.4f", *value) : absl::StrFormat("%10s", "-");
}

nlohmann::ordered_json OrNull(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

absl::StatusOr<EvaluationReport> EvaluateCheckpoint(const LoadedConfig& loaded,
                                                    std::optional<int64_t> step) {
  const Config& config = loaded.config;
  if (!config.eval.enabled()) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded.Where("eval.paloma"),
                     ": there is nothing to evaluate; name a directory with eval.paloma=... or "
                     "eval.held_out=[...]"));
  }
  if (config.checkpoint.directory.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded.Where("checkpoint.directory"), ": missing; name the run to evaluate"));
  }
  EvaluationReport report;
  report.run = config.checkpoint.directory;
  const CheckpointStore store(RunDirectory::CheckpointsOf(report.run), config.checkpoint.keep);
  if (!step.has_value()) {
    OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, store.Marked());
    if (marked.empty()) {
      return absl::NotFoundError(
          absl::StrCat(report.run, " has no finished checkpoint; `overtok train` makes them"));
    }
    step = marked.back();
  }
  report.checkpoint = store.PathOf(*step);
  OT_ASSIGN_OR_RETURN(const TrainingState state, store.ReadState(*step));
  OT_RETURN_IF_ERROR(CheckIdentity(report.checkpoint, state.identity, ModelIdentity(config)));
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<EvaluationData> data,
                      EvaluationData::Open(config, state.data));
  OT_RETURN_IF_ERROR(CheckFits(config));
  Memory memory(Memory::Mode::kReal);
  EvaluationModel model(config, &memory);
  OT_RETURN_IF_ERROR(store.LoadModel(*step, &model.parameters));
  OT_ASSIGN_OR_RETURN(report.scores,
                      model.evaluator.Run(model.context, *data, [] { return false; }));
  report.step = state.step;
  report.tokens = state.tokens;
  const auto tokens = static_cast<double>(state.tokens);
  report.backbone_flops = BackboneFlops(config.model, tokens);
  report.total_flops =
      LevanterForwardFlops(config.model, config.data.sequence_length).training() * tokens;
  return report;
}

std::string EvaluationReport::ToText() const {
  std::string text = absl::StrFormat("%s: step %d, %d tokens, 6ND %.5g, FLOPs %.5g\n", checkpoint,
                                     step, tokens, backbone_flops, total_flops);
  for (const CollectionScore& collection : scores.collections) {
    absl::StrAppend(&text, absl::StrFormat("%-40s %10s %10s %10s %9s\n", collection.prefix, "loss",
                                           "bpb exact", "bpb", "windows"));
    for (const SubsetScore& subset : collection.subsets) {
      absl::StrAppend(
          &text, absl::StrFormat("  %-38s %10.4f %s %s %9d\n", subset.name, subset.loss(),
                                 Cell(subset.bpb_exact()), Cell(subset.bpb()), subset.windows));
    }
    const std::string macro = collection.complete ? "macro" : "macro of a part of Paloma's subsets";
    absl::StrAppend(
        &text,
        absl::StrFormat("  %-38s %10.4f %s %s\n", macro, collection.macro_loss(),
                        Cell(collection.macro_bpb(true)), Cell(collection.macro_bpb(false))),
        absl::StrFormat("  %-38s %10.4f\n", "micro", collection.micro_loss()));
    if (!collection.left_out.empty()) {
      absl::StrAppend(&text, "  left out, shorter than a window: ",
                      absl::StrJoin(collection.left_out, ", "), "\n");
    }
  }
  return text;
}

std::string EvaluationReport::ToJson() const {
  nlohmann::ordered_json json = {{"run", run},
                                 {"checkpoint", checkpoint},
                                 {"step", step},
                                 {"tokens", tokens},
                                 {"flops_6nd_backbone", backbone_flops},
                                 {"total_flops", total_flops}};
  json["collections"] = nlohmann::ordered_json::object();
  for (const CollectionScore& collection : scores.collections) {
    nlohmann::ordered_json entry;
    entry["complete"] = collection.complete;
    entry["macro_loss"] = collection.macro_loss();
    entry["micro_loss"] = collection.micro_loss();
    entry["macro_bpb"] = OrNull(collection.macro_bpb(false));
    entry["macro_bpb_exact"] = OrNull(collection.macro_bpb(true));
    entry["left_out"] = collection.left_out;
    entry["subsets"] = nlohmann::ordered_json::object();
    for (const SubsetScore& subset : collection.subsets) {
      entry["subsets"][subset.name] = {{"loss", subset.loss()},
                                       {"bpb", OrNull(subset.bpb())},
                                       {"bpb_exact", OrNull(subset.bpb_exact())},
                                       {"windows", subset.windows},
                                       {"targets", subset.weight},
                                       {"bytes", OrNull(subset.bytes)}};
    }
    json["collections"][collection.prefix] = std::move(entry);
  }
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace overtok

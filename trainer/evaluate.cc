#include "trainer/evaluate.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "core/comm/agreement.h"
#include "core/comm/mesh.h"
#include "core/memory.h"
#include "optim/table_schedule.h"
#include "trainer/checkpoint.h"
#include "trainer/config/derived.h"
#include "trainer/evaluator.h"
#include "trainer/host_tensors.h"
#include "trainer/inclusion.h"
#include "trainer/layout.h"
#include "trainer/open_device.h"
#include "trainer/plan.h"
#include "trainer/run_directory.h"
#include "trainer/run_identity.h"
#include "trainer/run_stage.h"
#include "trainer/table_memory.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// A model without gradients and optimizer, and what evaluates it.
struct EvaluationModel {
  EvaluationModel(const Config& config, const Mesh* mesh, Memory* memory)
      : context(memory->device() != nullptr ? memory->device() : CpuDevice()),
        parameters(memory, config.train.precision, /*with_gradients=*/false,
                   StorageOf(config.optimizer), mesh->layout()),
        model(config.model, config.loss, Evaluator::OptionsOf(config), &parameters, mesh, memory),
        evaluator(config, &model, &parameters, mesh, memory) {
    if (config.model.ngram_embedding.has_value()) {
      tables = std::make_unique<TableSchedule>(config.optimizer, config.train.steps, memory);
    }
    memory->Commit(&context);
  }
  Context context;
  ParameterSet parameters;
  Transformer model;
  Evaluator evaluator;
  std::unique_ptr<TableSchedule> tables;
};

// Bytes that an evaluation takes.
MemoryPlan PlanEvaluation(const Config& config, const Layout& layout) {
  Memory memory(Memory::Mode::kDry, PlannedDevice(config.train.device, config.train.attention));
  const Mesh mesh(layout);
  const EvaluationModel model(config, &mesh, &memory);
  MemoryPlan plan;
  plan.device = config.train.device;
  plan.host = memory.host_bytes();
  for (int p = 0; p < kPurposes; ++p) {
    plan.by_purpose[static_cast<size_t>(p)] = memory.bytes(static_cast<Purpose>(p));
  }
  return plan;
}

std::string Cell(const std::optional<double>& value) {
  return value.has_value() ? absl::StrFormat("%10.4f", *value) : absl::StrFormat("%10s", "-");
}

nlohmann::ordered_json OrNull(const std::optional<double>& value) {
  return value.has_value() ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

absl::Status CheckRequest(const LoadedConfig& loaded, const EvaluateOptions& options) {
  const Config& config = loaded.config;
  if (!config.eval.enabled() && !options.seen) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded.Where("eval.paloma"),
                     ": there is nothing to evaluate; name a directory with eval.paloma=... or "
                     "eval.held_out=[...]"));
  }
  if (config.checkpoint.directory.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded.Where("checkpoint.directory"), ": missing; name the run to evaluate"));
  }
  if (options.windows < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--windows is ", options.windows, ", expected at least 1"));
  }
  if (options.scramble_ngrams && !config.model.ngram_embedding.has_value()) {
    return absl::InvalidArgumentError(
        "--scramble-ngrams has no effect: the model has no n-gram tables (model.ngram_embedding is "
        "null)");
  }
  return absl::OkStatus();
}

// Pass of the last of `completed` steps.
int64_t PassBehind(const TrainingData& data, int64_t completed) {
  return completed > 0 ? data.order.StepPass((completed - 1) * data.loader.batch_sequences) : 0;
}

// What is evaluated and on what; every rank finds the same.
struct Subject {
  TrainingState state;
  // The order of the data is needed to count reads, to know the pass that named the rows of
  // re-hashed tables, and to measure labels; the horizon, where only the corpus tells it.
  std::optional<TrainingData> training;
  std::unique_ptr<EvaluationData> data = std::make_unique<EvaluationData>();
  EvaluationMoment moment;
};

bool IsRehashed(const Config& config) {
  return config.model.ngram_embedding.has_value() &&
         config.model.ngram_embedding->each_pass == NgramEmbeddingConfig::EachPass::kRehash;
}

// Not collective.
absl::Status Prepare(LoadedConfig* loaded, const EvaluateOptions& options, Subject* subject,
                     EvaluationReport* report) {
  const Config& config = loaded->config;
  const TrainingState& state = subject->state;
  std::optional<TrainingData>& training = subject->training;
  OT_RETURN_IF_ERROR(CheckIdentity(report->checkpoint, state.identity, ModelIdentity(config)));
  if (options.seen || IsRehashed(config) || config.train.steps == 0 ||
      (HasAdjustedCurve(config) && BehindSampledStage(config, state.step))) {
    OT_ASSIGN_OR_RETURN(training, OpenTrainingData(loaded));
    OT_RETURN_IF_ERROR(CheckIdentity(report->checkpoint, state.identity,
                                     TrainingIdentity(config, *training->corpus, training->order)));
  }
  if (state.step > config.train.steps) {
    return absl::FailedPreconditionError(
        absl::StrCat(report->checkpoint, " is of step ", state.step, ", beyond the horizon of ",
                     config.train.steps, " steps; evaluate the run's directory, or set ",
                     loaded->Where("train.steps"), " as it was in training"));
  }
  EvaluationMoment& moment = subject->moment;
  moment.model.scramble = options.scramble_ngrams;
  if (IsRehashed(config)) moment.model.pass = PassBehind(*training, state.step);
  if (BehindSampledStage(config, state.step)) {
    report->stage_candidates = CandidatesBehind(config, state.step);
    if (HasAdjustedCurve(config)) {
      OT_ASSIGN_OR_RETURN(const LabelSample labels,
                          SampleLabels(config, *training->corpus, training->order));
      moment.log_inclusion = LogInclusion(labels, report->stage_candidates);
    }
  }
  if (config.eval.enabled()) {
    OT_ASSIGN_OR_RETURN(subject->data, EvaluationData::Open(config, state.data));
  }
  if (options.seen) {
    report->seen =
        SliceByReads(training->order, training->windows, state.sequences, options.windows);
    OT_ASSIGN_OR_RETURN(EvaluationCollection seen, SeenCollection(*training, report->seen));
    subject->data->Append(std::move(seen));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<EvaluationReport> EvaluateCheckpoint(LoadedConfig loaded,
                                                    const EvaluateOptions& options,
                                                    Communicator* world) {
  const Config& config = loaded.config;
  OT_RETURN_IF_ERROR(Agree(*world, CheckRequest(loaded, options)));
  OT_RETURN_IF_ERROR(Agree(*world, CheckLayout(loaded, world->size(), /*training=*/false)));
  EvaluationReport report;
  report.run = config.checkpoint.directory;
  report.scrambled = options.scramble_ngrams;
  const CheckpointStore store(RunDirectory::CheckpointsOf(report.run), config.checkpoint.keep,
                              world);
  std::optional<int64_t> step = options.step;
  if (!step.has_value()) {
    OT_ASSIGN_OR_RETURN(const std::vector<int64_t> marked, store.Marked());
    if (marked.empty()) {
      return Agree(*world,
                   absl::NotFoundError(absl::StrCat(
                       report.run, " has no finished checkpoint; `overtok train` makes them")));
    }
    step = marked.back();
  }
  report.checkpoint = store.PathOf(*step);
  Subject subject;
  OT_ASSIGN_OR_RETURN(subject.state, store.ReadState(*step));
  OT_RETURN_IF_ERROR(Agree(*world, Prepare(&loaded, options, &subject, &report)));
  const TrainingState& state = subject.state;
  OT_ASSIGN_OR_RETURN(Device* const device, OpenDevice(config, *world));
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> device_world, OnDevice(*world, device));
  const Mesh mesh(device_world.get(), static_cast<int>(config.parallel.tensor),
                  config.parallel.vocabulary_map);
  PlaceTables(
      device->total_bytes(),
      [&](const Config& placed) { return PlanEvaluation(placed, mesh.layout()).purposes(); },
      &loaded.config);
  OT_RETURN_IF_ERROR(Agree(*world, CheckMemoryFits(PlanEvaluation(config, mesh.layout()),
                                                   /*ranks_here=*/1, device)));
  Memory memory(Memory::Mode::kReal, device);
  EvaluationModel model(config, &mesh, &memory);
  {
    const HostTensors values(model.context, model.parameters.values());
    OT_RETURN_IF_ERROR(store.LoadModel(*step, values.tensors()));
    values.Write();
    const HostTensors states(model.context, model.parameters.table_states());
    OT_RETURN_IF_ERROR(store.LoadTables(*step, states.tensors()));
    states.Write();
  }
  if (model.tables != nullptr) {
    subject.moment.model.tables = {model.tables->rule(), model.tables->At(state.step)};
  }
  OT_ASSIGN_OR_RETURN(report.scores, model.evaluator.Run(model.context, *subject.data,
                                                         subject.moment, [] { return false; }));
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
  if (stage_candidates > 0) {
    absl::StrAppend(&text, "in a sampled stage of ", stage_candidates,
                    " candidates: the full softmax is worse than the weights deserve\n");
  }
  if (scrambled) {
    absl::StrAppend(&text, "n-gram rows scrambled: every row moved by modulus / 2 + 7919\n");
  }
  std::vector<CollectionScore> all = scores.collections;
  all.insert(all.end(), scores.adjusted.begin(), scores.adjusted.end());
  for (const CollectionScore& collection : all) {
    absl::StrAppend(&text, absl::StrFormat("%-40s %10s %10s %10s %9s\n", collection.prefix, "loss",
                                           "bpb exact", "bpb", "windows"));
    for (const SubsetScore& subset : collection.subsets) {
      absl::StrAppend(
          &text, absl::StrFormat("  %-38s %10.4f %s %s %9d\n", subset.name, subset.loss(),
                                 Cell(subset.bpb_exact()), Cell(subset.bpb()), subset.windows));
    }
    if (collection.prefix == kSeenPrefix) {
      for (const SeenSlice& slice : seen) {
        absl::StrAppend(&text, absl::StrFormat("  read %d times: %d windows, %d of them scored\n",
                                               slice.reads, slice.available, slice.windows.size()));
      }
      continue;  // a mean over slices means nothing
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
  json["sampled_stage"] = stage_candidates > 0;
  if (stage_candidates > 0) json["stage_candidates"] = stage_candidates;
  json["scrambled_ngrams"] = scrambled;
  if (!seen.empty()) {
    json["seen"] = nlohmann::ordered_json::array();
    for (const SeenSlice& slice : seen) {
      json["seen"].push_back({{"reads", slice.reads},
                              {"windows_available", slice.available},
                              {"windows_scored", slice.windows.size()}});
    }
  }
  json["collections"] = nlohmann::ordered_json::object();
  std::vector<CollectionScore> all = scores.collections;
  all.insert(all.end(), scores.adjusted.begin(), scores.adjusted.end());
  for (const CollectionScore& collection : all) {
    nlohmann::ordered_json entry;
    if (collection.prefix != absl::string_view(kSeenPrefix)) {
      entry["complete"] = collection.complete;
      entry["macro_loss"] = collection.macro_loss();
      entry["micro_loss"] = collection.micro_loss();
      entry["macro_bpb"] = OrNull(collection.macro_bpb(false));
      entry["macro_bpb_exact"] = OrNull(collection.macro_bpb(true));
    }
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

#include "trainer/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/comm/communicator.h"
#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "core/memory.h"
#include "core/ops/table.h"
#include "data/loader.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// The first option of the methods that the reference does not know; empty when there is none.
std::string UnjudgedMethod(const Config& config) {
  if (config.loss.sampled_softmax.has_value() &&
      config.loss.sampled_softmax->negatives != Negatives::kSweep) {
    return "loss.sampled_softmax.negatives";
  }
  if (config.model.ngram_embedding.has_value()) {
    const NgramEmbeddingConfig& ngram = *config.model.ngram_embedding;
    if (ngram.moduli != NgramEmbeddingConfig::Moduli::kPaper) {
      return "model.ngram_embedding.moduli";
    }
    if (ngram.orders.front() != 2) return "model.ngram_embedding.orders";
    if (ngram.row_dropout != 0) return "model.ngram_embedding.row_dropout";
    if (ngram.each_pass != NgramEmbeddingConfig::EachPass::kKeep) {
      return "model.ngram_embedding.each_pass";
    }
  } else if (!config.model.ngram_head.has_value()) {
    return "";
  }
  const TablesConfig& tables = config.optimizer.tables;
  if (tables.update != TablesConfig::Update::kExact) return "optimizer.tables.update";
  if (tables.second_moment != TablesConfig::SecondMoment::kElement) {
    return "optimizer.tables.second_moment";
  }
  if (tables.beta1 != config.optimizer.beta1) return "optimizer.tables.beta1";
  if (tables.storage != DType::kF32) return "optimizer.tables.storage";
  if (tables.lr_scale != 1) return "optimizer.tables.lr_scale";
  if (tables.untouched_decay != 0) return "optimizer.tables.untouched_decay";
  return "";
}

absl::Status Refuse(const Config& config, const TraceOptions& options) {
  if (options.steps < 1 || options.steps > config.train.steps) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--steps ", options.steps, ": expected 1 to train.steps (", config.train.steps, ")"));
  }
  if (options.unjudged) return absl::OkStatus();
  const char* advice =
      " is not known to the reference that judges traces. Turn it off, or pass --unjudged.";
  if (config.loss.z_loss != 0)
    return absl::InvalidArgumentError(absl::StrCat("loss.z_loss", advice));
  if (config.optimizer.newton_schulz.coefficients != kSimpleNewtonSchulz) {
    return absl::InvalidArgumentError(absl::StrCat("optimizer.newton_schulz.coefficients", advice));
  }
  const std::string option = UnjudgedMethod(config);
  if (!option.empty()) return absl::InvalidArgumentError(absl::StrCat(option, advice));
  return absl::OkStatus();
}

absl::Status CheckSizes(const ParameterSet& parameters, int64_t limit) {
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.spec.shape.elements() <= limit) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        parameter.spec.name, " has ", parameter.spec.shape.elements(),
        " elements, more than --max-elements ", limit,
        ". A trace is for small models; raise --max-elements if this file may be that large."));
  }
  return absl::OkStatus();
}

// One tensor of a table's size, for the largest table; others have none of it.
int64_t LargestTable(const ParameterSet& parameters) {
  int64_t largest = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (parameter.is_table()) largest = std::max(largest, parameter.spec.shape.elements());
  }
  return largest;
}

// Tables as a dense optimizer would hold them: rows brought to the state before `step` in a copy,
// gradients scattered.
class DenseTables {
 public:
  explicit DenseTables(TrainStep* train)
      : train_(train), dense_(static_cast<size_t>(LargestTable(train->parameters()))) {}

  Tensor Value(const Parameter& parameter, int64_t step) {
    const Tensor all = Dense(parameter);
    ids_.resize(static_cast<size_t>(all.dim(0)));
    std::iota(ids_.begin(), ids_.end(), 0U);
    TableSchedule& schedule = train_->optimizer().tables();
    TableLookup(train_->context(), {.state = parameter.table,
                                    .rule = schedule.rule(),
                                    .replay = schedule.At(step),
                                    .ids = Tensor(ids_.data(), {all.dim(0)}),
                                    .y = all});
    return all;
  }

  Tensor Gradient(const Parameter& parameter, bool frozen) {
    const Tensor all = Dense(parameter);
    std::fill_n(all.data<float>(), all.elements(), 0.0F);
    if (frozen && parameter.spec.freezes) return all;
    const TouchedRows& touched = parameter.touched;
    const auto* rows = touched.rows.data<uint32_t>();
    for (int64_t i = 0; i < touched.count; ++i) {
      const Tensor row = touched.gradient.Rows(i, 1);
      std::copy_n(row.data<float>(), row.elements(),
                  all.Rows(static_cast<int64_t>(rows[i]), 1).data<float>());
    }
    return all;
  }

 private:
  Tensor Dense(const Parameter& parameter) { return Tensor(dense_.data(), parameter.spec.shape); }

  TrainStep* train_;
  std::vector<float> dense_;
  std::vector<uint32_t> ids_;
};

// Values of all parameters before `step`.
absl::Status WriteValues(const ParameterSet& parameters, absl::string_view group, int64_t step,
                         DenseTables* tables, Hdf5File* file) {
  OT_RETURN_IF_ERROR(file->CreateGroup(group));
  for (const Parameter& parameter : parameters.all()) {
    const std::string name = absl::StrCat(group, "/", parameter.spec.name);
    OT_RETURN_IF_ERROR(
        file->Write(name, parameter.is_table() ? tables->Value(parameter, step) : parameter.value));
    OT_RETURN_IF_ERROR(file->SetAttribute(name, "group", NameOf(parameter.spec.group)));
  }
  return absl::OkStatus();
}

// The update leaves the gradients as they were, before clipping.
absl::Status WriteGradients(const ParameterSet& parameters, absl::string_view group, bool frozen,
                            DenseTables* tables, Hdf5File* file) {
  OT_RETURN_IF_ERROR(file->CreateGroup(group));
  for (const Parameter& parameter : parameters.all()) {
    const std::string name = absl::StrCat(group, "/", parameter.spec.name);
    OT_RETURN_IF_ERROR(file->Write(
        name, parameter.is_table() ? tables->Gradient(parameter, frozen) : parameter.gradient));
    OT_RETURN_IF_ERROR(file->SetAttribute(name, "group", NameOf(parameter.spec.group)));
  }
  return absl::OkStatus();
}

absl::Status WriteBatch(const Batch& batch, int64_t block_sequences, const std::string& group,
                        Hdf5File* file) {
  const Shape shape = {batch.sequences, batch.length};
  std::vector<int32_t> block(static_cast<size_t>(batch.sequences));
  for (size_t i = 0; i < block.size(); ++i) {
    block[i] = static_cast<int32_t>(static_cast<int64_t>(i) / block_sequences);
  }
  OT_RETURN_IF_ERROR(
      file->Write(group + "/tokens", Tensor(const_cast<uint32_t*>(batch.tokens.data()), shape)));
  OT_RETURN_IF_ERROR(
      file->Write(group + "/segments", Tensor(const_cast<int32_t*>(batch.segments.data()), shape)));
  OT_RETURN_IF_ERROR(file->Write(group + "/loss_weight",
                                 Tensor(const_cast<float*>(batch.loss_weight.data()), shape)));
  return file->Write(group + "/block", Tensor(block.data(), {batch.sequences}));
}

// The sets that heads scored in this step; none of a head that used all its classes.
absl::Status WriteCandidates(const Transformer& model, const std::string& group, Hdf5File* file) {
  bool any = false;
  for (const auto& head : model.heads()) {
    if (head->candidates() == nullptr || head->candidates()->sets()[0].every_class) continue;
    if (!any) OT_RETURN_IF_ERROR(file->CreateGroup(group + "/candidates"));
    any = true;
    const std::string path = absl::StrCat(group, "/candidates/", NameOf(head->kind()));
    OT_RETURN_IF_ERROR(file->CreateGroup(path));
    const std::vector<CandidateSet>& sets = head->candidates()->sets();
    for (size_t b = 0; b < sets.size(); ++b) {
      const std::string name = absl::StrCat(path, "/", b);
      uint32_t nothing = 0;
      OT_RETURN_IF_ERROR(file->Write(name, sets[b].overflow ? Tensor(&nothing, {0}) : sets[b].ids));
      OT_RETURN_IF_ERROR(file->SetAttribute(name, "offset", sets[b].offset));
      OT_RETURN_IF_ERROR(file->SetAttribute(name, "overflow", int64_t{sets[b].overflow}));
      OT_RETURN_IF_ERROR(file->SetAttribute(name, "correction", sets[b].correction));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteStep(const StepResult& result, const std::string& group, Hdf5File* file) {
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "step", result.step));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "loss", result.loss));
  for (const HeadResult& head : result.heads) {
    OT_RETURN_IF_ERROR(
        file->SetAttribute(group, absl::StrCat("loss_", NameOf(head.kind)), head.loss));
  }
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "lr_scale", result.lr_scale));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "lr", result.lr));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "adam_lr", result.adam_lr));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "stage_candidates", result.stage_candidates));
  return file->SetAttribute(group, "tables_frozen", int64_t{result.tables_frozen});
}

absl::Status Write(const Config& config, const TrainingData& data, const TraceOptions& options,
                   const std::string& path) {
  Memory memory(Memory::Mode::kReal);
  const std::unique_ptr<Communicator> communicator = OneRank();
  TrainStep train(config, &memory, communicator.get());
  train.Commit();
  OT_RETURN_IF_ERROR(CheckSizes(train.parameters(), options.max_elements));
  train.Initialize();

  OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::Create(path));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "format", "overtok-trace"));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "version", int64_t{1}));
  OT_RETURN_IF_ERROR(file.SetAttribute("/", "config", ResolvedYaml(config)));
  OT_RETURN_IF_ERROR(
      file.SetAttribute("/", "world_size", static_cast<int64_t>(communicator->size())));
  DenseTables tables(&train);
  OT_RETURN_IF_ERROR(WriteValues(train.parameters(), "/init", 0, &tables, &file));
  Batch batch;
  for (int64_t step = 0; step < options.steps; ++step) {
    OT_RETURN_IF_ERROR(FillBatch(*data.corpus, data.order, data.loader, step, &batch));
    OT_ASSIGN_OR_RETURN(const StepResult result, train.Run(batch, step));
    const std::string group = absl::StrFormat("/step_%06d", step);
    OT_RETURN_IF_ERROR(file.CreateGroup(group));
    OT_RETURN_IF_ERROR(WriteStep(result, group, &file));
    OT_RETURN_IF_ERROR(WriteBatch(batch, config.loss.block_sequences, group, &file));
    OT_RETURN_IF_ERROR(WriteCandidates(train.model(), group, &file));
    OT_RETURN_IF_ERROR(
        WriteGradients(train.parameters(), group + "/grads", result.tables_frozen, &tables, &file));
    OT_RETURN_IF_ERROR(
        WriteValues(train.parameters(), group + "/params", step + 1, &tables, &file));
  }
  return file.Close();
}

}  // namespace

absl::Status WriteTrace(LoadedConfig loaded, const TraceOptions& options) {
  OT_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(&loaded));
  OT_RETURN_IF_ERROR(Refuse(loaded.config, options));
  const std::string temporary = absl::StrCat(options.out, ".tmp.", getpid());
  absl::Status status = Write(loaded.config, data, options, temporary);
  if (!status.ok()) {
    std::remove(temporary.c_str());
    return status;
  }
  return RenamePath(temporary, options.out);
}

}  // namespace overtok

#include "trainer/trace.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/comm/agreement.h"
#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "core/memory.h"
#include "core/ops/table.h"
#include "data/loader.h"
#include "trainer/gather.h"
#include "trainer/host_tensors.h"
#include "trainer/layout.h"
#include "trainer/open_device.h"
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

// What each rank holds of a tensor, gathered at rank 0 and written there. Of tables, rows as a
// dense optimizer would hold them: brought to the state before `step` in a copy, gradients
// scattered.
class LogicalWriter {
 public:
  // `file`: null on other ranks than 0.
  LogicalWriter(TrainStep* train, Hdf5File* file)
      : train_(train), file_(file), memory_(Memory::Mode::kReal, &train->context().device()) {
    int64_t largest = 0, largest_part = 0, most_rows = 0;
    for (const Parameter& parameter : train->parameters().all()) {
      largest = std::max(largest, parameter.spec.shape.elements());
      if (!parameter.is_table()) continue;
      largest_part = std::max(largest_part, parameter.value.elements());
      most_rows = std::max(most_rows, parameter.value.dim(0));
    }
    if (file != nullptr) logical_.resize(static_cast<size_t>(largest));
    part_.resize(static_cast<size_t>(largest_part));
    if (largest_part == 0) return;
    ids_.resize(static_cast<size_t>(most_rows));
    std::iota(ids_.begin(), ids_.end(), 0U);
    looked_up_ = memory_.Take(Purpose::kActivations, "trace.rows", DType::kF32, {largest_part});
    device_ids_ = memory_.Take(Purpose::kActivations, "trace.ids", DType::kU32, {most_rows});
    train->context().Write(ids_.data(), device_ids_);
  }

  absl::Status Group(absl::string_view group) {
    return file_ == nullptr ? absl::OkStatus() : file_->CreateGroup(group);
  }

  // Values before `step`.
  absl::Status Values(absl::string_view group, int64_t step) {
    OT_RETURN_IF_ERROR(Group(group));
    const std::vector<ShardedTensor> owned = train_->optimizer().owned_values();
    for (const Parameter& parameter : train_->parameters().all()) {
      OT_RETURN_IF_ERROR(
          Write(group, parameter,
                parameter.is_table() ? TableValues(parameter, step) : NamedIn(owned, parameter)));
    }
    return absl::OkStatus();
  }

  // Gradients before clipping; the update leaves them as they were.
  absl::Status Gradients(absl::string_view group, bool frozen) {
    OT_RETURN_IF_ERROR(Group(group));
    const std::vector<ShardedTensor> owned = train_->optimizer().owned_gradients();
    for (const Parameter& parameter : train_->parameters().all()) {
      OT_RETURN_IF_ERROR(Write(
          group, parameter,
          parameter.is_table() ? TableGradient(parameter, frozen) : NamedIn(owned, parameter)));
    }
    return absl::OkStatus();
  }

 private:
  using Parts = std::vector<ShardedTensor>;

  static Parts NamedIn(const Parts& all, const Parameter& parameter) {
    Parts parts;
    for (const ShardedTensor& entry : all) {
      if (entry.name == parameter.spec.name) parts.push_back(entry);
    }
    return parts;
  }

  Parts TableValues(const Parameter& parameter, int64_t step) {
    const Shape shape = parameter.value.shape();
    const Tensor all(part_.data(), shape);
    if (all.elements() == 0) return {{parameter.spec.name, parameter.region(), all}};
    const Context& context = train_->context();
    parameter.Settle(context);
    TableSchedule& schedule = train_->optimizer().tables();
    const TableReplay& replay = schedule.At(step);
    context.SendInputs(InputGroup::kSchedule);
    const Tensor rows = looked_up_.Rows(0, all.elements()).Reshape(shape);
    TableLookup(context, {.state = parameter.table,
                          .rule = schedule.rule(),
                          .replay = OnDevice(context, replay),
                          .ids = device_ids_.Rows(0, shape[0]),
                          .y = rows});
    context.Read(rows, all.raw());
    return {{parameter.spec.name, parameter.region(), all}};
  }

  Parts TableGradient(const Parameter& parameter, bool frozen) {
    const Tensor all(part_.data(), parameter.value.shape());
    std::fill_n(all.data<float>(), all.elements(), 0.0F);
    const TouchedRows& owned = parameter.owned;
    if (owned.count > 0 && !(frozen && parameter.spec.freezes)) {
      std::vector<float> rows(static_cast<size_t>(owned.used_gradient().elements()));
      train_->context().Read(owned.used_gradient(), rows.data());
      const int64_t width = all.dim(1);
      for (int64_t i = 0; i < owned.count; ++i) {
        std::copy_n(rows.data() + i * width, width,
                    all.Rows(owned.rows.data<uint32_t>()[i], 1).data<float>());
      }
    }
    return {{parameter.spec.name, parameter.region(), all}};
  }

  absl::Status Write(absl::string_view group, const Parameter& parameter, const Parts& parts) {
    const Tensor logical =
        file_ == nullptr ? Tensor() : Tensor(logical_.data(), parameter.spec.shape);
    if (parameter.is_table()) {
      GatherTensor(train_->mesh().world(), parts, logical);
    } else {
      HostTensors host(train_->context(), parts);
      host.Read();
      GatherTensor(train_->mesh().world(), host.tensors(), logical);
    }
    if (file_ == nullptr) return absl::OkStatus();
    const std::string name = absl::StrCat(group, "/", parameter.spec.name);
    OT_RETURN_IF_ERROR(file_->Write(name, logical));
    return file_->SetAttribute(name, "group", NameOf(parameter.spec.group));
  }

  TrainStep* train_;
  Hdf5File* file_;
  Memory memory_;
  std::vector<float> logical_, part_;
  std::vector<uint32_t> ids_;      // 0, 1, ...
  Tensor looked_up_, device_ids_;  // rows of a table, and the numbers of all of them
};

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

absl::Status WriteHeader(const Config& config, int world, Hdf5File* file) {
  OT_RETURN_IF_ERROR(file->SetAttribute("/", "format", "overtok-trace"));
  OT_RETURN_IF_ERROR(file->SetAttribute("/", "version", int64_t{1}));
  OT_RETURN_IF_ERROR(file->SetAttribute("/", "config", ResolvedYaml(config)));
  return file->SetAttribute("/", "world_size", int64_t{world});
}

// The steps, on every rank; `file`: null on other ranks than 0.
absl::Status RunSteps(const Config& config, const TrainingData& data, const TraceOptions& options,
                      TrainStep* train, Hdf5File* file) {
  LogicalWriter tensors(train, file);
  OT_RETURN_IF_ERROR(tensors.Values("/init", 0));
  Batch batch;
  for (int64_t step = 0; step < options.steps; ++step) {
    OT_RETURN_IF_ERROR(FillBatch(*data.corpus, data.order, data.loader, step, &batch));
    OT_ASSIGN_OR_RETURN(const StepResult result, train->Run(batch, step));
    const std::string group = absl::StrFormat("/step_%06d", step);
    OT_RETURN_IF_ERROR(tensors.Group(group));
    if (file != nullptr) {
      OT_RETURN_IF_ERROR(WriteStep(result, group, file));
      OT_RETURN_IF_ERROR(WriteBatch(batch, config.loss.block_sequences, group, file));
      OT_RETURN_IF_ERROR(WriteCandidates(train->model(), group, file));
    }
    OT_RETURN_IF_ERROR(tensors.Gradients(group + "/grads", result.tables_frozen));
    OT_RETURN_IF_ERROR(tensors.Values(group + "/params", step + 1));
  }
  return absl::OkStatus();
}

absl::Status Write(const Config& config, const TrainingData& data, const TraceOptions& options,
                   const std::string& path, Communicator* world) {
  OT_ASSIGN_OR_RETURN(Device* const device, OpenDevice(config, *world));
  OT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> device_world, OnDevice(*world, device));
  Memory memory(Memory::Mode::kReal, device);
  const Mesh mesh(device_world.get(), static_cast<int>(config.parallel.tensor),
                  config.parallel.vocabulary_map);
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  OT_RETURN_IF_ERROR(CheckSizes(train.parameters(), options.max_elements));
  train.Initialize();
  if (world->rank() != 0) return RunSteps(config, data, options, &train, nullptr);
  OT_ASSIGN_OR_RETURN(Hdf5File file, Hdf5File::Create(path));
  OT_RETURN_IF_ERROR(WriteHeader(config, world->size(), &file));
  OT_RETURN_IF_ERROR(RunSteps(config, data, options, &train, &file));
  return file.Close();
}

}  // namespace

absl::Status WriteTrace(LoadedConfig loaded, const TraceOptions& options, Communicator* world) {
  absl::StatusOr<TrainingData> data = OpenTrainingData(&loaded);
  absl::Status ready = data.status();
  if (ready.ok()) ready = CheckLayout(loaded, world->size());
  if (ready.ok()) ready = Refuse(loaded.config, options);
  OT_RETURN_IF_ERROR(Agree(*world, ready));
  OT_RETURN_IF_ERROR(CheckSameConfig(*world, loaded.config));
  const std::string temporary = absl::StrCat(options.out, ".tmp.", getpid());
  absl::Status status = Write(loaded.config, *data, options, temporary, world);
  if (world->rank() != 0) return status;
  if (!status.ok()) {
    std::remove(temporary.c_str());
    return status;
  }
  return RenamePath(temporary, options.out);
}

}  // namespace overtok

#include "trainer/trace.h"

#include <unistd.h>

#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/comm/communicator.h"
#include "core/io/files.h"
#include "core/io/hdf5.h"
#include "core/memory.h"
#include "data/loader.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

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

absl::Status WriteParameters(const ParameterSet& parameters, absl::string_view group,
                             bool gradients, Hdf5File* file) {
  OT_RETURN_IF_ERROR(file->CreateGroup(group));
  for (const Parameter& parameter : parameters.all()) {
    const std::string name = absl::StrCat(group, "/", parameter.spec.name);
    OT_RETURN_IF_ERROR(file->Write(name, gradients ? parameter.gradient : parameter.value));
    OT_RETURN_IF_ERROR(file->SetAttribute(name, "group", NameOf(parameter.spec.group)));
  }
  return absl::OkStatus();
}

absl::Status WriteBatch(const Batch& batch, const std::string& group, Hdf5File* file) {
  const Shape shape = {batch.sequences, batch.length};
  // Every window is a candidate block of its own while there is no sampled softmax.
  std::vector<int32_t> block(static_cast<size_t>(batch.sequences));
  for (size_t i = 0; i < block.size(); ++i) block[i] = static_cast<int32_t>(i);
  OT_RETURN_IF_ERROR(
      file->Write(group + "/tokens", Tensor(const_cast<uint32_t*>(batch.tokens.data()), shape)));
  OT_RETURN_IF_ERROR(
      file->Write(group + "/segments", Tensor(const_cast<int32_t*>(batch.segments.data()), shape)));
  OT_RETURN_IF_ERROR(file->Write(group + "/loss_weight",
                                 Tensor(const_cast<float*>(batch.loss_weight.data()), shape)));
  return file->Write(group + "/block", Tensor(block.data(), {batch.sequences}));
}

absl::Status WriteStep(const Config& config, const StepResult& result, const std::string& group,
                       Hdf5File* file) {
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "step", result.step));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "loss", result.loss));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "loss_main", result.loss_main));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "lr_scale", result.lr_scale));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "lr", result.lr));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "adam_lr", result.adam_lr));
  OT_RETURN_IF_ERROR(file->SetAttribute(group, "stage_candidates", config.model.vocab_size));
  return file->SetAttribute(group, "tables_frozen", int64_t{0});
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
  OT_RETURN_IF_ERROR(WriteParameters(train.parameters(), "/init", false, &file));
  Batch batch;
  for (int64_t step = 0; step < options.steps; ++step) {
    OT_RETURN_IF_ERROR(FillBatch(*data.corpus, data.order, data.loader, step, &batch));
    OT_ASSIGN_OR_RETURN(const StepResult result, train.Run(batch, step));
    const std::string group = absl::StrFormat("/step_%06d", step);
    OT_RETURN_IF_ERROR(file.CreateGroup(group));
    OT_RETURN_IF_ERROR(WriteStep(config, result, group, &file));
    OT_RETURN_IF_ERROR(WriteBatch(batch, group, &file));
    // The update leaves the gradients as they were, before clipping.
    OT_RETURN_IF_ERROR(WriteParameters(train.parameters(), group + "/grads", true, &file));
    OT_RETURN_IF_ERROR(WriteParameters(train.parameters(), group + "/params", false, &file));
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

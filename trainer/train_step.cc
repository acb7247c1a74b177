#include "trainer/train_step.h"

#include <chrono>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "core/comm/agreement.h"
#include "optim/schedule.h"
#include "trainer/run_stage.h"

namespace overtok {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Stamps of an open step.
enum Stamp : int { kBegin, kGradients, kEnd, kStamps };
static_assert(kStamps * TrainStep::kMostOpen <= Device::kStamps);

bool TablesFrozen(const Config& config, int64_t step) {
  const int64_t freeze = config.optimizer.tables.freeze_step;
  return freeze > 0 && step >= freeze;
}

}  // namespace

BatchView ViewOf(const Batch& batch, int64_t step) {
  BatchView view;
  view.sequences = batch.sequences;
  view.length = batch.length;
  view.tokens = batch.tokens.data();
  view.segments = batch.segments.data();
  view.loss_weight = batch.loss_weight.data();
  view.step = step;
  view.pass = batch.pass;
  return view;
}

TrainStep::TrainStep(const Config& config, const Mesh* mesh, Memory* memory)
    : config_(config),
      mesh_(mesh),
      memory_(memory),
      context_(memory->device() != nullptr ? memory->device() : CpuDevice()),
      parameters_(memory, config.train.precision, /*with_gradients=*/true,
                  StorageOf(config.optimizer), mesh->layout()) {
  TransformerOptions options;
  options.pass = {config.train.micro_batch_sequences, config.data.sequence_length};
  options.batch_sequences = config.train.batch_sequences;
  options.steps = config.train.steps;
  options.seed = config.train.seed;
  options.act = config.train.precision;
  options.recompute = config.train.recompute == Recompute::kBlock;
  options.gradient_order = config.parallel.gradient_sum;
  model_ =
      std::make_unique<Transformer>(config.model, config.loss, options, &parameters_, mesh, memory);
  optimizer_ = std::make_unique<Optimizer>(config.optimizer, config.train.steps, config.train.seed,
                                           &parameters_, model_->BackwardOrder(), mesh, memory,
                                           config.parallel.gradient_sum);
  model_->gradients().OnComplete(
      [this](Parameter& parameter) { optimizer_->GradientReady(context_, parameter); });
}

void TrainStep::Initialize() {
  parameters_.Initialize(config_.train.seed);
  optimizer_->InitializeMasters(config_.train.seed, memory_->device());
}

void TrainStep::ReinitializeTables(int64_t pass, int64_t step) {
  for (const NgramParameters& table : model_->ngram_parameters()) {
    parameters_.ReinitializeTable(*table.table, config_.train.seed, pass, step);
  }
}

std::vector<TableFacts> TrainStep::CountTables() {
  std::vector<TableFacts> tables;
  std::vector<int64_t> counts;
  for (const Parameter& parameter : parameters_.all()) {
    if (!parameter.is_table()) continue;
    tables.push_back({std::string(absl::StripSuffix(parameter.spec.name, ".table.weight")), 0});
    counts.push_back(parameter.owned.count);
  }
  mesh_->world().AllReduceSum(std::span<int64_t>(counts), Traffic::kControl);
  for (size_t t = 0; t < tables.size(); ++t) tables[t].rows_touched = counts[t];
  return tables;
}

bool TrainStep::Together(int64_t i) const {
  const Layout& layout = mesh_->layout();
  return config_.train.cuda_graphs && layout.tensor == 1 &&
         (layout.world() == 1 || (i > 0 && i + 1 < model_->micro_batches()));
}

void TrainStep::RunMicroBatches(StepResult* result) {
  for (int64_t i = 0; i < model_->micro_batches(); ++i) {
    const auto run = [&] { model_->ForwardBackward(context_, i); };
    if (Together(i)) {
      context_.device().RunTogether(i, run);
    } else {
      run();
    }
    if (works_behind()) continue;
    result->forward_seconds += model_->forward_seconds();
    result->backward_seconds += model_->backward_seconds();
  }
  model_->ReturnGradients(context_);
  optimizer_->FinishGradients(context_);
}

absl::Status TrainStep::Ask(const Batch& batch, int64_t step, bool update) {
  OT_CHECK_EQ(batch.sequences, config_.train.batch_sequences);
  OT_CHECK_EQ(batch.length, config_.data.sequence_length);
  OT_CHECK_LT(open_, kMostOpen);
  const int place = (oldest_ + open_) % kMostOpen;
  OpenStep& open = steps_[static_cast<size_t>(place)];
  open.first_stamp = kStamps * place;
  open.update = update;
  open.result = StepResult();
  StepResult& result = open.result;
  result.step = step;

  const double start = Now();
  if (batch.begins_pass && config_.model.ngram_embedding.has_value() &&
      config_.model.ngram_embedding->each_pass == NgramEmbeddingConfig::EachPass::kReinitialize) {
    ReinitializeTables(batch.pass, step);
  }
  parameters_.StartStep();
  OT_RETURN_IF_ERROR(model_->BeginStep(ViewOf(batch, step)));
  optimizer_->BeginStep(step);
  result.tables = CountTables();
  result.stage_candidates = CandidatesOfStep(config_, step);
  result.tables_frozen = TablesFrozen(config_, step);
  result.lr_scale = LrScale(config_.optimizer.schedule, config_.train.steps, step);
  result.lr = config_.optimizer.lr * result.lr_scale;
  result.adam_lr = config_.optimizer.adam_lr * result.lr_scale;
  for (size_t h = 0; h < model_->heads().size(); ++h) {
    const Head& head = *model_->heads()[h];
    HeadResult& part = result.heads.emplace_back();
    part.kind = head.kind();
    part.weight_sum = model_->weight_sums()[h];
    part.sampled = head.candidates() != nullptr;
    if (part.sampled) part.candidates = model_->candidate_facts(head);
  }
  result.weight_sum = model_->weight_sums()[0];
  result.naming_seconds = Now() - start;

  Device& device = context_.device();
  device.Stamp(open.first_stamp + kBegin);
  context_.SendInputs(InputGroup::kSchedule);
  context_.SendInputs(InputGroup::kStep);
  parameters_.RefreshComputeCopies(context_, ParameterSet::Copies::kNeeded);
  optimizer_->CatchUp(context_);
  model_->FetchRows(context_);
  RunMicroBatches(&result);
  device.Stamp(open.first_stamp + kGradients);
  losses_.clear();
  for (const auto& head : model_->heads()) losses_.push_back(head->sums());
  const auto norms_and_update = [&] {
    optimizer_->ComputeNorms(context_, step, losses_);
    // What computes at once has the flag already, and a halted update is not even begun.
    const bool halted = !works_behind() && optimizer_->halted().data<uint32_t>()[0] != 0;
    if (update && !halted) optimizer_->Step(context_, step, result.lr_scale);
  };
  if (config_.train.cuda_graphs && mesh_->layout().world() == 1) {
    device.RunTogether(model_->micro_batches(), norms_and_update);
  } else {
    norms_and_update();
  }
  device.Stamp(open.first_stamp + kEnd);
  StartReading(&open);
  result.host_seconds = Now() - start;
  ++open_;
  return absl::OkStatus();
}

void TrainStep::StartReading(OpenStep* step) {
  const size_t heads = model_->heads().size();
  size_t values = Optimizer::kNorms;
  step->parts.resize(heads);
  for (size_t h = 0; h < heads; ++h) {
    step->parts[h] = model_->heads()[h]->parts();
    values += static_cast<size_t>(losses_[h].elements());
  }
  step->values.resize(values);
  double* to = step->values.data();
  pieces_.clear();
  const auto read = [&](const Tensor& tensor) {
    pieces_.push_back({to, tensor.raw(), tensor.bytes()});
    to += tensor.elements();
  };
  for (const Tensor& losses : losses_) read(losses);
  read(optimizer_->norms());
  const Tensor& halted = optimizer_->halted();
  pieces_.push_back({&step->halted, halted.raw(), halted.bytes()});
  step->ticket = context_.device().StartRead(pieces_);
}

void TrainStep::CollectLosses(OpenStep* step) {
  const size_t heads = step->parts.size(), width = heads + 1;
  const auto all =
      static_cast<size_t>(config_.train.batch_sequences / config_.train.micro_batch_sequences);
  sums_.assign(all * width, 0.0);
  const double* from = step->values.data();
  for (size_t h = 0; h < heads; ++h) {
    double* sums = &sums_[static_cast<size_t>(model_->first_micro_batch()) * width];
    for (const int64_t parts : step->parts[h]) {
      for (int64_t i = 0; i < parts; ++i, from += kLossSums) {
        sums[h] += from[0];
        if (h == 0) sums[heads] += from[1];
      }
      sums += width;
    }
  }
  mesh_->data().AllReduceSum(std::span<double>(sums_), Traffic::kControl);

  StepResult& result = step->result;
  std::vector<double> totals(width);
  for (size_t i = 0; i < sums_.size(); ++i) totals[i % width] += sums_[i];
  for (size_t h = 0; h < heads; ++h) {
    HeadResult& part = result.heads[h];
    part.loss = part.weight_sum > 0 ? totals[h] / part.weight_sum : 0.0;
    result.loss += model_->heads()[h]->loss_weight() * part.loss;
  }
  result.loss_main = result.heads[0].loss;
  result.z_loss =
      result.weight_sum > 0 ? config_.loss.z_loss * totals[heads] / result.weight_sum : 0.0;
  result.loss += result.z_loss;
}

absl::Status TrainStep::Start(const Batch& batch, int64_t step) {
  return Ask(batch, step, /*update=*/true);
}

absl::StatusOr<StepResult> TrainStep::Finish() {
  OT_CHECK_GE(open_, 1);
  OpenStep& step = steps_[static_cast<size_t>(oldest_)];
  Device& device = context_.device();
  device.FinishRead(step.ticket);
  oldest_ = (oldest_ + 1) % kMostOpen;
  --open_;
  CollectLosses(&step);
  StepResult& result = step.result;
  const GradientNorms norms = NormsOf(std::span<const double>(step.values).last(Optimizer::kNorms));
  result.norms = norms.of_group;
  result.total_norm = norms.total;
  const auto seconds = [&](int from, int to) {
    return device.SecondsBetween(step.first_stamp + from, step.first_stamp + to);
  };
  result.device_seconds = seconds(kBegin, kEnd);
  result.gradients_seconds = seconds(kBegin, kGradients);
  result.optimizer_seconds = seconds(kGradients, kEnd);
  if (step.halted == 0) return result;

  // What was asked for after it has changed nothing either.
  for (; open_ > 0; --open_) {
    device.FinishRead(steps_[static_cast<size_t>(oldest_)].ticket);
    oldest_ = (oldest_ + 1) % kMostOpen;
  }
  optimizer_->Resume(context_);
  if (!step.update) return result;
  // Sums over all ranks, the same on each: they decide alike.
  return Agree(
      mesh_->world(),
      absl::FailedPreconditionError(absl::StrFormat(
          "step %d: the loss (%g) or the gradient norm (%g) is not finite. Nothing was updated. "
          "Lower optimizer.lr or optimizer.adam_lr, or look at the batch with `overtok data show "
          "--step %d`.",
          result.step, result.loss, result.total_norm, result.step)));
}

absl::StatusOr<StepResult> TrainStep::Gradients(const Batch& batch, int64_t step) {
  OT_CHECK_EQ(open_, 0);
  OT_RETURN_IF_ERROR(Ask(batch, step, /*update=*/false));
  return Finish();
}

absl::StatusOr<StepResult> TrainStep::Run(const Batch& batch, int64_t step) {
  OT_CHECK_EQ(open_, 0);
  OT_RETURN_IF_ERROR(Start(batch, step));
  return Finish();
}

}  // namespace overtok

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

void TrainStep::RunMicroBatches(StepResult* result) {
  const size_t heads = model_->heads().size(), width = heads + 1;
  const auto all =
      static_cast<size_t>(config_.train.batch_sequences / config_.train.micro_batch_sequences);
  sums_.assign(all * width, 0.0);
  for (int64_t i = 0; i < model_->micro_batches(); ++i) {
    model_->ForwardBackward(context_, i);
    result->forward_seconds += model_->forward_seconds();
    result->backward_seconds += model_->backward_seconds();
  }
  const double start = Now();
  model_->ReturnGradients(context_);
  optimizer_->FinishGradients(context_);
  const std::vector<std::vector<LossSums>> losses = model_->Losses(context_);
  for (int64_t i = 0; i < model_->micro_batches(); ++i) {
    double* sums = &sums_[static_cast<size_t>(model_->first_micro_batch() + i) * width];
    const auto at = static_cast<size_t>(i);
    for (size_t h = 0; h < heads; ++h) sums[h] = losses[h][at].loss;
    sums[heads] = losses[0][at].lse_squared;
  }
  mesh_->data().AllReduceSum(std::span<double>(sums_), Traffic::kControl);
  result->backward_seconds += Now() - start;

  const std::vector<double>& weights = model_->weight_sums();
  std::vector<double> totals(width);
  for (size_t i = 0; i < sums_.size(); ++i) totals[i % width] += sums_[i];
  for (size_t h = 0; h < heads; ++h) {
    const Head& head = *model_->heads()[h];
    HeadResult& part = result->heads.emplace_back();
    part.kind = head.kind();
    part.loss = weights[h] > 0 ? totals[h] / weights[h] : 0.0;
    part.weight_sum = weights[h];
    part.sampled = head.candidates() != nullptr;
    if (part.sampled) part.candidates = model_->candidate_facts(head);
    result->loss += head.loss_weight() * part.loss;
  }
  result->weight_sum = weights[0];
  result->loss_main = result->heads[0].loss;
  result->z_loss = weights[0] > 0 ? config_.loss.z_loss * totals[heads] / weights[0] : 0.0;
  result->loss += result->z_loss;
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

absl::StatusOr<StepResult> TrainStep::Gradients(const Batch& batch, int64_t step) {
  OT_CHECK_EQ(batch.sequences, config_.train.batch_sequences);
  OT_CHECK_EQ(batch.length, config_.data.sequence_length);
  StepResult result;
  result.step = step;
  double start = Now();
  if (batch.begins_pass && config_.model.ngram_embedding.has_value() &&
      config_.model.ngram_embedding->each_pass == NgramEmbeddingConfig::EachPass::kReinitialize) {
    ReinitializeTables(batch.pass, step);
  }
  parameters_.StartStep();
  OT_RETURN_IF_ERROR(model_->BeginStep(ViewOf(batch, step)));
  optimizer_->BeginStep(step);
  context_.SendInputs(InputGroup::kSchedule);
  context_.SendInputs(InputGroup::kStep);
  parameters_.RefreshComputeCopies(context_, ParameterSet::Copies::kNeeded);
  optimizer_->CatchUp(context_);
  model_->FetchRows(context_);
  result.forward_seconds += Now() - start;
  RunMicroBatches(&result);
  result.tables = CountTables();
  result.stage_candidates = CandidatesOfStep(config_, step);
  result.tables_frozen = TablesFrozen(config_, step);

  start = Now();
  optimizer_->ComputeNorms(context_, step);
  for (int g = 0; g < kOptimizerGroups; ++g) {
    result.norms[static_cast<size_t>(g)] = optimizer_->norm(static_cast<OptimizerGroup>(g));
  }
  result.total_norm = optimizer_->total_norm();
  result.lr_scale = LrScale(config_.optimizer.schedule, config_.train.steps, step);
  result.lr = config_.optimizer.lr * result.lr_scale;
  result.adam_lr = config_.optimizer.adam_lr * result.lr_scale;
  result.optimizer_seconds += Now() - start;
  return result;
}

absl::StatusOr<StepResult> TrainStep::Run(const Batch& batch, int64_t step) {
  OT_ASSIGN_OR_RETURN(StepResult result, Gradients(batch, step));
  // Sums over all ranks, the same on each: they decide alike.
  if (!std::isfinite(result.loss) || !std::isfinite(result.total_norm)) {
    return Agree(
        mesh_->world(),
        absl::FailedPreconditionError(absl::StrFormat(
            "step %d: the loss (%g) or the gradient norm (%g) is not finite. Nothing was updated. "
            "Lower optimizer.lr or optimizer.adam_lr, or look at the batch with `overtok data show "
            "--step %d`.",
            step, result.loss, result.total_norm, step)));
  }
  const double start = Now();
  optimizer_->Step(context_, step, result.lr_scale);
  result.optimizer_seconds += Now() - start;
  return result;
}

}  // namespace overtok

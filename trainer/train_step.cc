#include "trainer/train_step.h"

#include <chrono>
#include <cmath>
#include <vector>

#include "absl/strings/str_format.h"
#include "optim/schedule.h"

namespace overtok {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void FillMicroBatch(const Batch& batch, int64_t first_row, int64_t rows, double global_weight,
                    const MicroBatch& out) {
  const int64_t length = batch.length;
  OT_CHECK(first_row >= 0 && first_row + rows <= batch.sequences);
  OT_CHECK_EQ(out.tokens.elements(), rows * length);
  const auto base = static_cast<size_t>(first_row * length);
  auto* tokens = out.tokens.data<uint32_t>();
  auto* targets = out.targets.data<uint32_t>();
  auto* segments = out.segments.data<int32_t>();
  auto* weight = out.loss_weight.data<float>();
  auto* gradient_weight = out.gradient_weight.data<float>();
  const double inverse = global_weight > 0 ? 1.0 / global_weight : 0.0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t t = 0; t < length; ++t) {
      const int64_t i = r * length + t;
      const int64_t next = t + 1 < length ? i + 1 : r * length;
      tokens[i] = batch.tokens[base + static_cast<size_t>(i)];
      targets[i] = batch.tokens[base + static_cast<size_t>(next)];
      segments[i] = batch.segments[base + static_cast<size_t>(i)];
      weight[i] = batch.loss_weight[base + static_cast<size_t>(i)];
      gradient_weight[i] = static_cast<float>(static_cast<double>(weight[i]) * inverse);
    }
  }
}

MicroBatch TakeMicroBatch(const PassShape& pass, Memory* memory) {
  const int64_t t = pass.tokens();
  MicroBatch micro;
  micro.tokens = memory->Take(Purpose::kBatches, "batch.tokens", DType::kU32, {t});
  micro.targets = memory->Take(Purpose::kBatches, "batch.targets", DType::kU32, {t});
  micro.segments =
      memory->Take(Purpose::kBatches, "batch.segments", DType::kI32, {pass.batch, pass.length});
  micro.loss_weight = memory->Take(Purpose::kBatches, "batch.loss_weight", DType::kF32, {t});
  micro.gradient_weight =
      memory->Take(Purpose::kBatches, "batch.gradient_weight", DType::kF32, {t});
  return micro;
}

TrainStep::TrainStep(const Config& config, Memory* memory, Communicator* communicator)
    : config_(config),
      memory_(memory),
      communicator_(communicator),
      context_(CpuContext()),
      parameters_(memory, config.train.precision, /*with_gradients=*/true) {
  TransformerOptions options;
  options.pass = {config.train.micro_batch_sequences, config.data.sequence_length};
  options.act = config.train.precision;
  options.recompute = config.train.recompute == Recompute::kBlock;
  micro_ = TakeMicroBatch(options.pass, memory);
  model_ = std::make_unique<Transformer>(config.model, config.loss, options, &parameters_, memory);
  optimizer_ = std::make_unique<Optimizer>(config.optimizer, &parameters_, memory);
}

absl::StatusOr<StepResult> TrainStep::Gradients(const Batch& batch, int64_t step) {
  OT_CHECK_EQ(batch.sequences, config_.train.batch_sequences);
  OT_CHECK_EQ(batch.length, config_.data.sequence_length);
  StepResult result;
  result.step = step;
  double start = Now();
  parameters_.RefreshComputeCopies(context_);
  result.forward_seconds += Now() - start;

  double weight[1] = {batch.weight_sum};
  OT_RETURN_IF_ERROR(communicator_->AllReduceSum(std::span<double>(weight)));
  parameters_.StartGradients();
  double sums[2] = {0, 0};
  const int64_t micro = config_.train.micro_batch_sequences;
  for (int64_t row = 0; row < batch.sequences; row += micro) {
    FillMicroBatch(batch, row, micro, weight[0], micro_);
    const LossSums part = model_->ForwardBackward(context_, micro_);
    sums[0] += part.loss;
    sums[1] += part.lse_squared;
    result.forward_seconds += model_->forward_seconds();
    result.backward_seconds += model_->backward_seconds();
  }
  OT_RETURN_IF_ERROR(communicator_->AllReduceSum(std::span<double>(sums)));
  const double inverse = weight[0] > 0 ? 1.0 / weight[0] : 0.0;
  result.weight_sum = weight[0];
  result.loss_main = sums[0] * inverse;
  result.z_loss = config_.loss.z_loss * sums[1] * inverse;
  result.loss = result.loss_main + result.z_loss;

  start = Now();
  optimizer_->ComputeNorms(context_);
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
  const bool bad = !std::isfinite(result.loss) || !std::isfinite(result.total_norm);
  OT_ASSIGN_OR_RETURN(const bool any_bad, communicator_->Any(bad));
  if (any_bad) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "step %d: the loss (%g) or the gradient norm (%g) is not finite. Nothing was updated. "
        "Lower optimizer.lr or "
        "optimizer.adam_lr, or look at the batch with `overtok data show --step %d`.",
        step, result.loss, result.total_norm, step));
  }
  const double start = Now();
  optimizer_->Step(context_, step, result.lr_scale);
  result.optimizer_seconds += Now() - start;
  return result;
}

}  // namespace overtok

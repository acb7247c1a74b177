// TrainStep: one optimizer step, the same code path for `overtok train`, `trace` and `bench step`:
// micro-batches forward and backward, one division by the global weight sum, norms, the guard
// against non-finite values, the update.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "core/comm/communicator.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "data/batch.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "trainer/config/config.h"

namespace overtok {

// The device side of one micro-batch, and how it is filled from rows [first_row, first_row + rows)
// of a batch (targets, weights over the global sum). Evaluation uses the same two.
MicroBatch TakeMicroBatch(const PassShape& pass, Memory* memory);
void FillMicroBatch(const Batch& batch, int64_t first_row, int64_t rows, double global_weight,
                    const MicroBatch& out);

struct StepResult {
  int64_t step = 0;      // the step that was taken, from 0
  double loss = 0;       // the scalar that was differentiated
  double loss_main = 0;  // mean next-token cross-entropy over the batch
  double z_loss = 0;     // mean of lse^2 times its coefficient
  double weight_sum = 0;
  double lr_scale = 0, lr = 0, adam_lr = 0;
  std::array<double, kOptimizerGroups> norms{};  // before clipping, by OptimizerGroup
  double total_norm = 0;
  double forward_seconds = 0, backward_seconds = 0, optimizer_seconds = 0;
};

// Everything a step needs, with every byte taken in the constructor. In a dry Memory it can only be
// planned, not run.
class TrainStep {
 public:
  TrainStep(const Config& config, Memory* memory, Communicator* communicator);

  void Initialize() { parameters_.Initialize(config_.train.seed); }

  // Loss and gradients of `batch` (B windows), then the update of `step`. A non-finite loss or norm
  // is an error that names the step, and no parameter or state has changed then. Zero total weight
  // gives loss 0 and zero gradients.
  absl::StatusOr<StepResult> Run(const Batch& batch, int64_t step);
  // The same without the update.
  absl::StatusOr<StepResult> Gradients(const Batch& batch, int64_t step);

  ParameterSet& parameters() { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  Transformer& model() { return *model_; }
  Context& context() { return context_; }
  const Config& config() const { return config_; }
  // Call after the last component has taken its memory (an evaluator may share it); allocates the
  // scratch.
  void Commit() { memory_->Commit(&context_); }

 private:
  Config config_;
  Memory* memory_;
  Communicator* communicator_;
  Context context_;
  ParameterSet parameters_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Optimizer> optimizer_;
  MicroBatch micro_;
};

}  // namespace overtok

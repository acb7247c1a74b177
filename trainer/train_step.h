// TrainStep: one optimizer step, the same code path for `overtok train`, `trace` and `bench step`,
// on one rank or many: micro-batches forward and backward, one division by the global weight sum,
// sums over ranks, norms, the guard against non-finite values, the update.
//
// The host decides what a step works on (ids, candidate sets, rows of tables), hands all ops over
// and collects the results; the device never waits for it in between. A device that works behind
// the host is kept busy by asking for the next step before the results of the last are collected:
//   Start(k); Start(k + 1); Finish() of k; Start(k + 2); Finish() of k + 1; ...
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "data/batch.h"
#include "model/transformer.h"
#include "optim/optimizer.h"
#include "optim/table_schedule.h"
#include "trainer/config/config.h"

namespace overtok {

// What the model reads of a batch.
BatchView ViewOf(const Batch& batch, int64_t step);

// One head's part of a step.
struct HeadResult {
  HeadKind kind = HeadKind::kMain;
  double loss = 0;        // mean over the head's own weights: what was differentiated, unweighted
  double weight_sum = 0;  // of the global batch
  bool sampled = false;   // scored candidates: `loss` is no cross-entropy over all classes
  CandidateFacts candidates;  // of a sampled head
};

// One table's part of a step.
struct TableFacts {
  std::string name;          // "ngram.0", "gram2"
  int64_t rows_touched = 0;  // distinct rows, over all ranks
};

struct StepResult {
  int64_t step = 0;               // the step that was taken, from 0
  double loss = 0;                // the scalar that was differentiated
  double loss_main = 0;           // mean next-token loss over the batch: heads[0].loss
  double z_loss = 0;              // mean of lse^2 times its coefficient
  double weight_sum = 0;          // of the main head
  std::vector<HeadResult> heads;  // in the order of Transformer::heads()
  int64_t stage_candidates = 0;   // P of the main head's stage, or V
  std::vector<TableFacts> tables;
  bool tables_frozen = false;
  double lr_scale = 0, lr = 0, adam_lr = 0;
  std::array<double, kOptimizerGroups> norms{};  // before clipping, by OptimizerGroup
  double total_norm = 0;
  // Of the device, from its first op to its last; of that losses and gradients, and norms and
  // update.
  double device_seconds = 0, gradients_seconds = 0, optimizer_seconds = 0;
  // Of the gradients' time, on the CPU: up to the heads, and from the heads on. 0 elsewhere.
  double forward_seconds = 0, backward_seconds = 0;
  // Of the host: to name what the step works on, and with handing over its ops (on the CPU, which
  // works meanwhile, the whole step).
  double naming_seconds = 0, host_seconds = 0;
};

// Everything a step needs, with every byte taken in the constructor. In a dry Memory it can only be
// planned, not run.
class TrainStep {
 public:
  // The configuration fits the mesh (trainer/layout.h), which must outlive the step.
  TrainStep(const Config& config, const Mesh* mesh, Memory* memory);

  // Initial values of a run that starts at step 0.
  void Initialize();

  // Collective. Asks for loss and gradients of `batch` (all B windows, on every rank), then the
  // update of `step`. The batch may change when it returns; at most kMostOpen steps are open.
  static constexpr int kMostOpen = 2;
  absl::Status Start(const Batch& batch, int64_t step);
  // Collective. Waits for the oldest open step. A non-finite loss or norm is an error that names
  // the step, the same on all ranks, and no parameter or state has changed then, nor by a step
  // asked for after it, which is dropped. (Ranks' copies of a value that differed, as only a fault
  // makes them, may be the owner's afterwards on a device.) Zero total weight gives loss 0 and zero
  // gradients.
  absl::StatusOr<StepResult> Finish();
  int open() const { return open_; }
  // Whether a second step should be open, so that the device is not left waiting.
  bool works_behind() const { return context_.device().own_memory(); }

  // Both, with no other step open.
  absl::StatusOr<StepResult> Run(const Batch& batch, int64_t step);
  // The same without the update: gradients of owned pieces are complete then.
  absl::StatusOr<StepResult> Gradients(const Batch& batch, int64_t step);

  ParameterSet& parameters() { return parameters_; }
  Optimizer& optimizer() { return *optimizer_; }
  Transformer& model() { return *model_; }
  Context& context() { return context_; }
  const Config& config() const { return config_; }
  const Mesh& mesh() const { return *mesh_; }
  // Call after the last component has taken its memory (an evaluator may share it); allocates the
  // scratch.
  void Commit() { memory_->Commit(&context_); }

 private:
  // A step whose results are on their way.
  struct OpenStep {
    StepResult result;  // what the host knew when it asked for it
    bool update = true;
    std::vector<std::vector<int64_t>> parts;  // of each head: of each micro-batch, LossSums
    std::vector<double> values;               // read: LossSums of all heads, norms
    uint32_t halted = 0;
    int64_t ticket = 0;
    int first_stamp = 0;
  };
  absl::Status Ask(const Batch& batch, int64_t step, bool update);
  void RunMicroBatches(StepResult* result);
  // Whether micro-batch i may be handed over as one: nothing in it is sent to other ranks, or
  // waited for, as the first waits for rows of tables.
  bool Together(int64_t i) const;
  void StartReading(OpenStep* step);
  // Sums of losses over all micro-batches of the batch, in their order: the same bits under every
  // layout.
  void CollectLosses(OpenStep* step);
  void ReinitializeTables(int64_t pass, int64_t step);
  std::vector<TableFacts> CountTables();

  Config config_;
  const Mesh* mesh_;
  Memory* memory_;
  Context context_;
  ParameterSet parameters_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Optimizer> optimizer_;
  std::array<OpenStep, kMostOpen> steps_;
  int oldest_ = 0, open_ = 0;
  // Of every micro-batch of the batch: losses of the heads, then the sum of lse^2.
  std::vector<double> sums_;
  std::vector<Tensor> losses_;  // of each head, on the device
  std::vector<Device::Piece> pieces_;
};

}  // namespace overtok

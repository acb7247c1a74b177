// The optimizer of all groups: clipping by each group's own norm, MuonH on matrices, AdamH on
// heads, Adam on the rest (docs/optimizers.md), touched rows of tables
// (docs/methods/table_optimizers.md). With several ranks each updates the pieces that it owns
// (optim/ownership.h) and holds state for those alone: gradients travel to owners while the
// backward pass runs, updated values come back. Its state is named and enumerable, so that
// checkpoints need to know nothing about it.
//
// Nothing here waits for a device: norms, and the sums of AdamH's heads, are made and used there.
// A step whose loss or norm is not finite is halted on the device (Clip::halted): no value and no
// state changes from then on, until Resume().
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/gradient_sum.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "optim/config.h"
#include "optim/gradient_exchange.h"
#include "optim/muonh.h"
#include "optim/table_schedule.h"
#include "optim/weight_exchange.h"

namespace overtok {

class Optimizer {
 public:
  // For a run of `steps`. `seed`: of the stochastic rounding of bf16 tables. `order`: dense
  // parameters in the order in which GradientReady will name them, the same on all ranks. `mesh`
  // must outlive the optimizer; the parameters have its layout. `sums`: how the gradients of data
  // ranks are added up, GradientSum's own order.
  Optimizer(const OptimizerConfig& config, int64_t steps, uint64_t seed, ParameterSet* parameters,
            const std::vector<Parameter*>& order, const Mesh* mesh, Memory* memory,
            GradientOrder sums = GradientOrder::kTree);

  // What CatchUp needs of the schedule, an input: call before Context::SendInputs.
  void BeginStep(int64_t step);
  // Brings the rows of every table that ranks read in this step (Parameter::owned) to the state
  // before the step of BeginStep. Call when the model has named them and the inputs were sent, and
  // before it fetches them.
  void CatchUp(const Context& context);

  // The gradient of a dense parameter is complete on this rank: starts to send what others own, in
  // buckets, and joins what has arrived. Nothing to do on one rank.
  void GradientReady(const Context& context, Parameter& parameter);
  // Waits for all pieces. Afterwards the gradients of owned pieces are the sums over all ranks that
  // hold them, by the tree of core/gradient_sum.h over data ranks, then over tensor ranks in order.
  void FinishGradients(const Context& context);

  // Norms of the gradients by group over all ranks, before clipping, the same bits on every rank
  // and under every number of data ranks; collective, once per step, after FinishGradients and
  // before Step. Tables count with their touched rows, frozen ones not at all. `losses`: f64 of
  // this rank; where the norms and all ranks' losses are not all finite, updates are halted.
  void ComputeNorms(const Context& context, int64_t step, std::span<const Tensor> losses);
  // What ComputeNorms leaves: [kNorms] f64 on the device, to be read for NormsOf, and [1] u32,
  // which is not 0 where updates are halted.
  static constexpr int kNorms = kOptimizerGroups + 1;
  const Tensor& norms() const { return norms_; }
  const Tensor& halted() const { return halted_; }
  void Resume(const Context& context);

  // The update of training step `step` (from 0) with the schedule's multiplier at that step.
  // Gradients are left as they are. Touched rows of tables must have been caught up to `step`; at a
  // frozen step a table is left alone, and the next CatchUp counts the step as silent. For whatever
  // the context is asked for next, every rank's values are the new ones. Collective.
  void Step(const Context& context, int64_t step, double lr_scale);

  // This rank's pieces of "muonh.momentum/<parameter>", "adamh.m/<parameter>",
  // "adam.v/<parameter>", "table.m/...", ...: what it writes to a checkpoint and fills from one.
  // All ranks' pieces together are every element once.
  const std::vector<ShardedTensor>& state() const { return state_; }
  // The values that this rank writes to a checkpoint: those of its pieces and its rows of tables.
  // All ranks' together are every element once.
  std::vector<ShardedTensor> owned_values() const;
  // What has to be filled from a checkpoint beside ParameterSet::values(): whole matrices that this
  // rank owns while it holds only a part of them. Copies of the parameters' values at any time.
  std::vector<ShardedTensor> masters() const;
  // After initial values were drawn: fills masters() from the seed's pure function.
  // device: as of DrawInitialValues (core/parameter.h).
  void InitializeMasters(uint64_t seed, Device* device);
  // Reduced gradients of this rank's dense pieces, between FinishGradients and the next step.
  std::vector<ShardedTensor> owned_gradients() const;

  // What brings rows of tables to a step, for reading them elsewhere (TableLookup). A model without
  // tables has none.
  TableSchedule& tables();

 private:
  // A piece of a dense parameter that AdamH or Adam updates.
  struct Moments {
    OwnedPiece piece;
    size_t head = 0;  // of AdamH: which of the parameters of the group, on every rank
    Tensor m, v;
  };
  struct Table {
    Parameter* parameter;
    uint64_t random_key;
  };
  void TakeMoments(Memory* memory);
  void TakeMatrices(Memory* memory);
  void PlanWeightRounds(const std::vector<Piece>& pieces, Memory* memory);
  bool Frozen(const Parameter& table, int64_t step) const;
  // Sums of squares of x by blocks, added to the sum of a group.
  void AddSquares(const Context& context, const Tensor& x, int64_t block, OptimizerGroup group);
  void MoveHeads(const Context& context, const Clip& clip, const AdamConstants& constants,
                 double rate);
  void UpdateTables(const Context& context, const Clip& clip, int64_t step, double rate);
  // This rank's sums among those of all ranks, [sums, words], and cleared.
  Tensor Begin(const Context& context, const Tensor& sums) const;
  // Sums over ranks, the same on all, rounded.
  void Join(const Context& context, const Tensor& sums, const Tensor& out);

  OptimizerConfig config_;
  ParameterSet* parameters_;
  const Mesh* mesh_;
  std::unique_ptr<TableSchedule> schedule_;
  std::vector<OwnedPiece> owned_;
  std::unique_ptr<GradientExchange> gradients_;
  std::unique_ptr<WeightExchange> weights_;
  std::unique_ptr<MuonH> muonh_;
  std::vector<Moments> adamh_, adam_;
  std::vector<Table> tables_;
  std::vector<ShardedTensor> state_;

  const TableReplay* replay_ = nullptr;  // of this step
  Tensor block_sums_;  // [most blocks of a pass] f64, what a pass leaves by blocks
  // Exact sums of all ranks, [ranks, sums, ExactSum::kWords] i64: squares by group and behind them
  // the losses; kBlockSums of each head.
  Tensor norm_words_, head_words_;
  Tensor norms_;        // [kNorms] f64: squares, and the sum of the losses
  Tensor head_totals_;  // [heads kBlockSums] f64
  Tensor halted_;       // [1] u32
};

// Norms as a step reports them.
struct GradientNorms {
  std::array<double, kOptimizerGroups> of_group{};  // L2; 0 for a group without parameters
  double total = 0;                                 // over all groups
};
// Of Optimizer::norms() in host memory, kNorms of them.
GradientNorms NormsOf(std::span<const double> norms);

}  // namespace overtok

// The model: input embedding, Qwen3 blocks, final norm and heads, with a hand-written backward
// pass. One object serves training (gradients, activations of every block, or of one with
// recomputation) or evaluation (no gradients, main head only). Ranks of the mesh each call it with
// the same batch; a rank works on its data rank's windows and its tensor rank's part of the model.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/gradient_sum.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "core/status.h"
#include "losses/config.h"
#include "losses/linear_cross_entropy.h"
#include "model/block.h"
#include "model/config.h"
#include "model/head.h"
#include "model/input_embedding.h"
#include "model/step_ids.h"

namespace overtok {

struct TransformerOptions {
  PassShape pass;               // micro-batch: windows and window length
  int64_t batch_sequences = 0;  // windows of a step over all ranks; in evaluation those of a pass
  int64_t steps = 0;            // of the run: ends of the stages of a sampled softmax
  uint64_t seed = 0;            // train.seed: candidates, row dropout, re-hashing
  DType act = DType::kF32;      // dtype of activations and products: kF32 or kBF16
  bool recompute =
      false;  // keep only the blocks' inputs; redo each block's forward in the backward pass
  bool training = true;  // false: forward only
  GradientOrder gradient_order = GradientOrder::kTree;
};

// What an evaluation reads beside the parameters.
struct EvaluationContext {
  TableReading tables;    // how rows of input tables are brought up to date; unused without tables
  int64_t pass = 0;       // of the last step trained: names the hash of re-hashed tables
  bool scramble = false;  // diagnostic: every n-gram's row moves (docs/methods/repetition.md)
};

// Of the candidate sets of a head in one step, over its blocks.
struct CandidateFacts {
  int64_t candidates = 0;  // P
  int64_t blocks = 0, overflows = 0;
  double present_mean = 0;  // distinct labels
  int64_t present_max = 0;
};

class Transformer {
 public:
  // Declares the parameters in `parameters` (order and names: docs/formats/trace.md) and takes all
  // buffers from `memory`. `mesh` has the layout of `parameters` and must outlive the model.
  Transformer(const ModelConfig& config, const LossConfig& loss, const TransformerOptions& options,
              ParameterSet* parameters, const Mesh* mesh, Memory* memory);

  // A second set of buffers over the same parameters, for evaluation at another pass shape while
  // training.
  Transformer(const Transformer& trained, const TransformerOptions& options, Memory* memory);

  // Collective. Start of a training step, after ParameterSet::StartStep: ids on the device,
  // candidate sets, rows of tables that ranks read. The rows then have to be brought up to date by
  // their owners (Optimizer::CatchUp), and fetched, before the first forward pass.
  absl::Status BeginStep(const BatchView& batch);
  void FetchRows(const Context& context);
  // Sums of the loss weights of this step's batch over all ranks, in the order of heads().
  const std::vector<double>& weight_sums() const { return weight_sums_; }

  // Micro-batches of this rank in a step, and the number in the batch of the first of them.
  int64_t micro_batches() const { return own_rows_ / options_.pass.batch; }
  int64_t first_micro_batch() const { return first_row_ / options_.pass.batch; }

  // Forward, heads and backward of this rank's micro-batch `index` (0, 1, ...); gradients add up by
  // core/gradient_sum.h. Does not wait for the device.
  void ForwardBackward(const Context& context, int64_t index);
  // Collective, after the last micro-batch: gradients of rows of tables to their owners.
  void ReturnGradients(const Context& context);
  // Dense parameters in the order in which the last micro-batch completes their gradients.
  std::vector<Parameter*> BackwardOrder() const;
  GradientSum& gradients() { return *gradients_; }

  // Collective. Forward and main head of one pass (batch.sequences = pass.batch), of each data rank
  // its own. Losses per token are then in token_losses() ([T] f32, on the device).
  absl::StatusOr<LossSums> Evaluate(const Context& context, const BatchView& batch,
                                    const EvaluationContext& evaluation);
  // The main head once more on the states of the last Evaluate, with bias[c] ([V] f32, an input)
  // added to the logits of class c.
  LossSums EvaluateWithBias(const Context& context, const Tensor& bias);
  const Tensor& token_losses() const { return cross_entropy_->token_losses(); }

  // Main head first.
  const std::vector<std::unique_ptr<Head>>& heads() const { return heads_; }
  const StepIds& ids() const { return *ids_; }
  CandidateFacts candidate_facts(const Head& head) const;
  const std::vector<NgramParameters>& ngram_parameters() const { return ngram_parameters_; }

  // Seconds of the last ForwardBackward: up to the heads, and from the heads on (a head's fused
  // pass counts as backward). Of a device that works behind the host: until the work was handed
  // over.
  double forward_seconds() const { return forward_seconds_; }
  double backward_seconds() const { return backward_seconds_; }

  const ModelConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }

 private:
  void DivideRows();
  HeadOptions OptionsOfHeads() const;
  void TakeBuffers(Memory* memory);
  void TakeHeads(int64_t width, Memory* memory);
  void Forward(const Context& context, int64_t first, const TableReading* reading);
  void RunHeads(const Context& context, int64_t first);
  void Backward(const Context& context, int64_t first);
  // Of the positions [first, first + T) of this rank's windows.
  Tensor Segments(const Context& context, int64_t first) const;
  RopeTables Rope(const Context& context) const;
  const BlockActivations& kept(int64_t layer) const {
    return activations_[activations_.size() == 1 ? 0 : static_cast<size_t>(layer)];
  }

  ModelConfig config_;
  LossConfig loss_;
  TransformerOptions options_;
  const Mesh* mesh_;
  int64_t first_row_ = 0, own_rows_ = 0;  // of this rank in a step
  Parameter* embedding_ = nullptr;
  std::vector<BlockParameters> block_parameters_;
  std::vector<Block> blocks_;
  Parameter* final_norm_ = nullptr;
  std::vector<NgramParameters> ngram_parameters_;
  std::vector<HeadParameters> head_parameters_;

  std::unique_ptr<GradientSum> gradients_;  // in training
  std::unique_ptr<TokenShards> tokens_;
  std::unique_ptr<StepIds> ids_;
  std::vector<double> weight_sums_;
  std::unique_ptr<InputEmbedding> input_;
  RopeTables rope_;
  std::vector<Tensor> stream_;  // [U, d]: inputs of the blocks, then the last block's output
  std::vector<BlockActivations>
      activations_;  // one per block, or one in all with recomputation or without training
  BlockWorkspace workspace_;
  Tensor hidden_, final_rstd_;  // [U, d] final normed state, [U]
  Tensor d_hidden_, d_stream_;  // [U, d]
  std::unique_ptr<LinearCrossEntropy> cross_entropy_;
  std::vector<std::unique_ptr<Head>> heads_;
  double forward_seconds_ = 0, backward_seconds_ = 0;
};

}  // namespace overtok

// The model: input embedding, Qwen3 blocks, final norm and heads, with a hand-written backward
// pass. One object serves training (gradients, activations of every block, or of one with
// recomputation) or evaluation (no gradients, main head only).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/parameter.h"
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
  int64_t batch_sequences = 0;  // windows of a step; in evaluation those of a pass
  int64_t steps = 0;            // of the run: ends of the stages of a sampled softmax
  uint64_t seed = 0;            // train.seed: candidates, row dropout, re-hashing
  DType act = DType::kF32;      // dtype of activations and products: kF32 or kBF16
  bool recompute =
      false;  // keep only the blocks' inputs; redo each block's forward in the backward pass
  bool training = true;  // false: forward only
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
  // buffers from `memory`.
  Transformer(const ModelConfig& config, const LossConfig& loss, const TransformerOptions& options,
              ParameterSet* parameters, Memory* memory);

  // A second set of buffers over the same parameters, for evaluation at another pass shape while
  // training.
  Transformer(const Transformer& trained, const TransformerOptions& options, Memory* memory);

  // Start of a training step, after ParameterSet::StartGradients: ids on the device, candidate
  // sets, touched rows of all tables. The rows then have to be brought up to date
  // (Optimizer::CatchUp) before the first forward pass.
  void BeginStep(const Context& context, const BatchView& batch);
  // Sums of the loss weights of this step's batch, in the order of heads(); and what they are over
  // all ranks.
  std::vector<double> weight_sums() const;
  void SetGlobalWeights(const std::vector<double>& sums) { ids_->SetGlobalWeights(sums); }

  // Forward, heads and backward of the micro-batch that begins at window `first_row` of the step:
  // gradients are added to the parameters' (written by the first micro-batch). Returns the sums of
  // each head, in the order of heads().
  std::vector<LossSums> ForwardBackward(const Context& context, int64_t first_row);

  // Forward and main head of one pass (batch.sequences = pass.batch). Losses per token are then in
  // token_losses() ([T] f32).
  LossSums Evaluate(const Context& context, const BatchView& batch,
                    const EvaluationContext& evaluation);
  // The main head once more on the states of the last Evaluate, with bias[c] ([V] f32) added to
  // the logits of class c.
  LossSums EvaluateWithBias(const Context& context, const Tensor& bias);
  const Tensor& token_losses() const { return cross_entropy_->token_losses(); }

  // Main head first.
  const std::vector<std::unique_ptr<Head>>& heads() const { return heads_; }
  const StepIds& ids() const { return *ids_; }
  CandidateFacts candidate_facts(const Head& head) const;
  const std::vector<NgramParameters>& ngram_parameters() const { return ngram_parameters_; }

  // Seconds of the last ForwardBackward: up to the heads, and from the heads on (a head's fused
  // pass counts as backward).
  double forward_seconds() const { return forward_seconds_; }
  double backward_seconds() const { return backward_seconds_; }

  const ModelConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }

 private:
  void TakeBuffers(Memory* memory);
  void Forward(const Context& context, int64_t first, const TableReading* reading);
  std::vector<LossSums> RunHeads(const Context& context, int64_t first);
  void Backward(const Context& context, int64_t first);
  // Of the positions [first, first + T) of the step.
  Tensor Segments(int64_t first) const;
  const BlockActivations& kept(int64_t layer) const {
    return activations_[activations_.size() == 1 ? 0 : static_cast<size_t>(layer)];
  }

  ModelConfig config_;
  LossConfig loss_;
  TransformerOptions options_;
  Parameter* embedding_ = nullptr;
  std::vector<BlockParameters> block_parameters_;
  std::vector<Block> blocks_;
  Parameter* final_norm_ = nullptr;
  std::vector<NgramParameters> ngram_parameters_;
  std::vector<HeadParameters> head_parameters_;

  std::unique_ptr<StepIds> ids_;
  std::unique_ptr<InputEmbedding> input_;
  RopeTables rope_;
  std::vector<Tensor> stream_;  // [T, d]: inputs of the blocks, then the last block's output
  std::vector<BlockActivations>
      activations_;  // one per block, or one in all with recomputation or without training
  BlockWorkspace workspace_;
  Tensor hidden_, final_rstd_;  // [T, d] final normed state, [T]
  Tensor d_hidden_, d_stream_;  // [T, d]
  std::unique_ptr<LinearCrossEntropy> cross_entropy_;
  std::vector<std::unique_ptr<Head>> heads_;
  double forward_seconds_ = 0, backward_seconds_ = 0;
};

}  // namespace overtok

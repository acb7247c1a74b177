// The model: token embedding, Qwen3 blocks, final norm and the next-token head, with a hand-written
// backward pass. One object serves training (gradients, activations of every block, or of one with
// recomputation) or evaluation (no gradients).
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
#include "model/micro_batch.h"

namespace overtok {

struct TransformerOptions {
  PassShape pass;           // micro-batch: windows and window length
  DType act = DType::kF32;  // dtype of activations and products: kF32 or kBF16
  bool recompute =
      false;  // keep only the blocks' inputs; redo each block's forward in the backward pass
  bool training = true;  // false: forward only
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

  // Forward, head and backward of one micro-batch: gradients are added to the parameters' (written
  // by the first micro-batch after ParameterSet::StartGradients). Returns the micro-batch's sums.
  LossSums ForwardBackward(const Context& context, const MicroBatch& batch);

  // Forward and head only. Losses per token are then in token_losses() ([T] f32).
  LossSums Evaluate(const Context& context, const MicroBatch& batch);
  const Tensor& token_losses() const { return head_->token_losses(); }

  // Seconds of the last ForwardBackward: up to the head, and from the head on (the head's fused
  // pass counts as backward).
  double forward_seconds() const { return forward_seconds_; }
  double backward_seconds() const { return backward_seconds_; }

  const ModelConfig& config() const { return config_; }
  const TransformerOptions& options() const { return options_; }

 private:
  void TakeBuffers(Memory* memory);
  void Forward(const Context& context, const MicroBatch& batch);
  LossSums Head(const Context& context, const MicroBatch& batch, bool gradients);
  void Backward(const Context& context, const MicroBatch& batch);
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
  Parameter* head_weight_ = nullptr;  // embedding_ when tied

  RopeTables rope_;
  std::vector<Tensor> stream_;  // [T, d]: inputs of the blocks, then the last block's output
  std::vector<BlockActivations>
      activations_;  // one per block, or one in all with recomputation or without training
  BlockWorkspace workspace_;
  Tensor hidden_, final_rstd_;  // [T, d] final normed state, [T]
  Tensor d_hidden_, d_stream_;  // [T, d]
  std::unique_ptr<LinearCrossEntropy> head_;
  double forward_seconds_ = 0, backward_seconds_ = 0;
};

}  // namespace overtok

// One Qwen3 block: attention branch and SwiGLU branch, each with a norm before and, with hybrid
// norm, one after it (docs/model.md). Backward is by hand. Kept for it: the block's input,
// projections before and after QK-norm, attention output, gate and up; recomputed: normed inputs
// and the gate's product. No [S, S] matrix exists. In a tensor group each rank has some of the
// heads and of the MLP's inner width, and norms and residual stream of its share of the tokens
// (docs/parallel.md).
#pragma once

#include <cstdint>
#include <vector>

#include "core/context.h"
#include "core/gradient_sum.h"
#include "core/memory.h"
#include "core/ops/rope.h"
#include "core/parameter.h"
#include "core/tensor.h"
#include "model/config.h"
#include "model/token_shards.h"

namespace overtok {

// Sizes of a pass: b windows of S tokens, T = b S.
struct PassShape {
  int64_t batch = 0, length = 0;
  int64_t tokens() const { return batch * length; }
};

// What one rank of a tensor group has of a block: tokens of the residual stream U (T on one rank),
// query heads H, key/value heads K, inner width m of the MLP.
struct BlockShape {
  PassShape pass;
  int64_t share = 0;
  int64_t heads = 0, kv_heads = 0, inner = 0;
  static BlockShape Of(const ModelConfig& config, const PassShape& pass, const Layout& layout);
};

struct AttentionParameters {
  Parameter *in_norm, *q, *k, *v, *q_norm, *k_norm, *o;
  Parameter* out_norm;  // null without hybrid norm
};

struct MlpParameters {
  Parameter *in_norm, *gate, *up, *down;
  Parameter* out_norm;  // null without hybrid norm
};

struct BlockParameters {
  AttentionParameters attention;
  MlpParameters mlp;
};

// Declares the parameters of block `index` in the order of the trace format.
BlockParameters DeclareBlock(const ModelConfig& config, int64_t index, ParameterSet* parameters);

// The parameters in the order in which Backward completes their gradients.
void AppendBackwardOrder(const BlockParameters& block, std::vector<Parameter*>* order);

// What a block keeps between its forward and backward pass. act: f32 or bf16; statistics f32.
// Letters as in BlockShape.
struct BlockActivations {
  Tensor in_rstd;                      // [U]
  Tensor q_raw, k_raw, v;              // [T, H, D], [T, K, D] x 2
  Tensor q_rstd, k_rstd;               // [T, H], [T, K]
  Tensor q, k;                         // after norm and RoPE
  Tensor heads, lse;                   // [T, H, D], [b, H, S]
  Tensor projected, out_rstd;          // [U, d], [U]; hybrid norm only
  Tensor middle;                       // [U, d]: the stream between the branches
  Tensor mlp_in_rstd;                  // [U]
  Tensor gate, up;                     // [T, m]
  Tensor mlp_projected, mlp_out_rstd;  // [U, d], [U]; hybrid norm only
};
BlockActivations TakeBlockActivations(const ModelConfig& config, const BlockShape& shape, DType act,
                                      Memory* memory);

// Buffers that all blocks share, live inside one call only.
struct BlockWorkspace {
  Tensor normed, normed_share;      // [T, d], [U, d]: the same tensor on one rank
  Tensor branch;                    // [T, d], of several ranks: a branch's output, or its gradient
  Tensor branch_share;              // [U, d], of several ranks without hybrid norm
  Tensor hidden, d_hidden;          // [T, m]
  Tensor d_branch;                  // [U, d]
  Tensor d_normed, d_normed_share;  // [T, d], [U, d]: the same tensor on one rank
  Tensor d_heads, dq;               // [T, H, D]
  Tensor dk, dv;                    // [T, K, D]
};
// `training` false: only what the forward pass needs.
BlockWorkspace TakeBlockWorkspace(const ModelConfig& config, const BlockShape& shape, DType act,
                                  bool training, Memory* memory);

class Block {
 public:
  // `gradients`: where weight gradients go; null where nothing is trained. Both must outlive the
  // block.
  Block(const ModelConfig& config, const BlockParameters& parameters, const TokenShards* tokens,
        GradientSum* gradients)
      : config_(config), parameters_(parameters), tokens_(tokens), gradients_(gradients) {}

  // input, output: [U, d] act, the residual stream before and after; output aliases nothing.
  // segments: [b, S] i32.
  void Forward(const Context& context, const RopeTables& rope, const Tensor& segments,
               const Tensor& input, const BlockActivations& kept, const BlockWorkspace& workspace,
               const Tensor& output) const;

  // d_stream: [U, d] act, the gradient of the output on entry and of the input on return. gate and
  // up of `kept` are overwritten.
  void Backward(const Context& context, const RopeTables& rope, const Tensor& segments,
                const Tensor& input, const BlockActivations& kept, const BlockWorkspace& workspace,
                const Tensor& d_stream) const;

 private:
  // out = residual + x W^T, where no norm stands between; else projected = x W^T and out = residual
  // + norm(projected). out, residual, projected: [U, d].
  void BranchOutput(const Context& context, const Tensor& x, const Parameter* weight,
                    const Parameter* norm, const Tensor& residual, const Tensor& projected,
                    const Tensor& rstd, const BlockWorkspace& workspace, const Tensor& out) const;
  // The gradient of a branch's product, whole, from that of its output's share.
  Tensor BranchGradient(const Context& context, const Tensor& d_out, const Tensor& projected,
                        Parameter* norm, const Tensor& rstd, const BlockWorkspace& workspace) const;
  void WeightGradient(const Context& context, const Tensor& dy, const Tensor& x,
                      Parameter* weight) const;
  void NormBackward(const Context& context, const Tensor& dy, const Tensor& x, Parameter* gain,
                    const Tensor& rstd, const Tensor& dx, bool accumulate_dx) const;
  void QkNormBackward(const Context& context, const RopeTables& rope, const Tensor& dy,
                      const Tensor& x, Parameter* gain, const Tensor& rstd) const;
  void NormedInput(const Context& context, const Tensor& x, const Parameter* gain,
                   const Tensor& rstd, const BlockWorkspace& workspace) const;

  ModelConfig config_;
  BlockParameters parameters_;
  const TokenShards* tokens_;
  GradientSum* gradients_;
};

}  // namespace overtok

// One Qwen3 block: attention branch and SwiGLU branch, each with a norm before and, with hybrid
// norm, one after it (docs/model.md). Backward is by hand. Kept for it: the block's input,
// projections before and after QK-norm, attention output, gate and up; recomputed: normed inputs
// and the gate's product. No [S, S] matrix exists.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/memory.h"
#include "core/ops/rope.h"
#include "core/parameter.h"
#include "core/tensor.h"
#include "model/config.h"

namespace overtok {

// Sizes of a pass: b windows of S tokens, T = b S.
struct PassShape {
  int64_t batch = 0, length = 0;
  int64_t tokens() const { return batch * length; }
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

// What a block keeps between its forward and backward pass. act: f32 or bf16; statistics f32.
// Letters as in ModelConfig.
struct BlockActivations {
  Tensor in_rstd;                      // [T]
  Tensor q_raw, k_raw, v;              // [T, H, D], [T, K, D] x 2
  Tensor q_rstd, k_rstd;               // [T, H], [T, K]
  Tensor q, k;                         // after norm and RoPE
  Tensor heads, lse;                   // [T, H, D], [b, H, S]
  Tensor projected, out_rstd;          // [T, d], [T]; hybrid norm only
  Tensor middle;                       // [T, d]: the stream between the branches
  Tensor mlp_in_rstd;                  // [T]
  Tensor gate, up;                     // [T, m]
  Tensor mlp_projected, mlp_out_rstd;  // [T, d], [T]; hybrid norm only
};
BlockActivations TakeBlockActivations(const ModelConfig& config, const PassShape& pass, DType act,
                                      Memory* memory);

// Buffers that all blocks share, live inside one call only.
struct BlockWorkspace {
  Tensor normed;              // [T, d]
  Tensor hidden, d_hidden;    // [T, m]
  Tensor d_branch, d_normed;  // [T, d]
  Tensor d_heads, dq;         // [T, H, D]
  Tensor dk, dv;              // [T, K, D]
};
// `training` false: only what the forward pass needs.
BlockWorkspace TakeBlockWorkspace(const ModelConfig& config, const PassShape& pass, DType act,
                                  bool training, Memory* memory);

class Block {
 public:
  Block(const ModelConfig& config, const BlockParameters& parameters)
      : config_(config), parameters_(parameters) {}

  // input, output: [T, d] act, the residual stream before and after; output aliases nothing.
  // segments: [b, S] i32.
  void Forward(const Context& context, const PassShape& pass, const RopeTables& rope,
               const Tensor& segments, const Tensor& input, const BlockActivations& kept,
               const BlockWorkspace& workspace, const Tensor& output) const;

  // d_stream: [T, d] act, the gradient of the output on entry and of the input on return. gate and
  // up of `kept` are overwritten. Weight gradients go to the parameters.
  void Backward(const Context& context, const PassShape& pass, const RopeTables& rope,
                const Tensor& segments, const Tensor& input, const BlockActivations& kept,
                const BlockWorkspace& workspace, const Tensor& d_stream) const;

 private:
  ModelConfig config_;
  BlockParameters parameters_;
};

}  // namespace overtok

#include "model/block.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/ops/activation.h"
#include "core/ops/attention.h"
#include "core/ops/elementwise.h"
#include "core/ops/matmul.h"
#include "core/ops/norm.h"

namespace overtok {
namespace {

// Linear layers [out, in] start at Z / sqrt(in), norm gains at 1 (docs/model.md).
Parameter* DeclareLinear(ParameterSet* parameters, std::string name, int64_t out, int64_t in,
                         Placement placement) {
  return &parameters->Add({.name = std::move(name),
                           .shape = {out, in},
                           .placement = placement,
                           .group = OptimizerGroup::kMuonH,
                           .initializer = Initializer::kNormal,
                           .scale = 1.0 / std::sqrt(static_cast<double>(in))},
                          /*matrix_product=*/true);
}

Parameter* DeclareGain(ParameterSet* parameters, std::string name, int64_t width) {
  return &parameters->Add({.name = std::move(name),
                           .shape = {width},
                           .placement = Placement::kReplicated,
                           .group = OptimizerGroup::kAdam,
                           .initializer = Initializer::kOnes,
                           .scale = 0},
                          /*matrix_product=*/false);
}

// True when the gradient has been written in this step, so that the next product adds to it.
bool Accumulate(Parameter* parameter) {
  const bool accumulate = parameter->gradient_written;
  parameter->gradient_written = true;
  return accumulate;
}

// y [T, out] = x [T, in] W^T
void Linear(const Context& context, const Tensor& x, const Parameter* weight, const Tensor& y,
            bool accumulate = false) {
  Matmul(context,
         {.a = x, .b = weight->compute, .c = y, .trans_b = true, .accumulate = accumulate});
}

// dx [T, in] (+)= dy [T, out] W
void LinearInputGradient(const Context& context, const Tensor& dy, const Parameter* weight,
                         const Tensor& dx, bool accumulate) {
  Matmul(context, {.a = dy, .b = weight->compute, .c = dx, .accumulate = accumulate});
}

// dW [out, in] (+)= dy^T x
void LinearWeightGradient(const Context& context, const Tensor& dy, const Tensor& x,
                          Parameter* weight) {
  Matmul(
      context,
      {.a = dy, .b = x, .c = weight->gradient, .trans_a = true, .accumulate = Accumulate(weight)});
}

void NormBackward(const Context& context, const Tensor& dy, const Tensor& x, Parameter* gain,
                  const Tensor& rstd, const Tensor& dx, bool accumulate_dx) {
  RmsNormBackward(context, {.dy = dy,
                            .x = x,
                            .gain = gain->value,
                            .rstd = rstd,
                            .dx = dx,
                            .dgain = gain->gradient,
                            .accumulate_dx = accumulate_dx,
                            .accumulate_dgain = Accumulate(gain)});
}

// [T, heads, D] as the [T, heads * D] that products see.
Tensor Flat(const Tensor& x) { return x.Reshape({x.dim(0), x.dim(1) * x.dim(2)}); }

}  // namespace

BlockParameters DeclareBlock(const ModelConfig& config, int64_t index, ParameterSet* parameters) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  const int64_t d = config.hidden_size;
  const int64_t m = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const auto rows = Placement::kShardedRows;
  const auto columns = Placement::kShardedColumns;
  BlockParameters block{};
  AttentionParameters& a = block.attention;
  a.in_norm = DeclareGain(parameters, prefix + "attn_in_norm.weight", d);
  a.q = DeclareLinear(parameters, prefix + "attn.q_proj.weight", q_width, d, rows);
  a.k = DeclareLinear(parameters, prefix + "attn.k_proj.weight", kv_width, d, rows);
  a.v = DeclareLinear(parameters, prefix + "attn.v_proj.weight", kv_width, d, rows);
  a.q_norm = DeclareGain(parameters, prefix + "attn.q_norm.weight", config.head_dim);
  a.k_norm = DeclareGain(parameters, prefix + "attn.k_norm.weight", config.head_dim);
  a.o = DeclareLinear(parameters, prefix + "attn.o_proj.weight", d, q_width, columns);
  if (config.hybrid_norm) a.out_norm = DeclareGain(parameters, prefix + "attn_out_norm.weight", d);
  MlpParameters& mlp = block.mlp;
  mlp.in_norm = DeclareGain(parameters, prefix + "mlp_in_norm.weight", d);
  mlp.gate = DeclareLinear(parameters, prefix + "mlp.gate_proj.weight", m, d, rows);
  mlp.up = DeclareLinear(parameters, prefix + "mlp.up_proj.weight", m, d, rows);
  mlp.down = DeclareLinear(parameters, prefix + "mlp.down_proj.weight", d, m, columns);
  if (config.hybrid_norm) mlp.out_norm = DeclareGain(parameters, prefix + "mlp_out_norm.weight", d);
  return block;
}

BlockActivations TakeBlockActivations(const ModelConfig& config, const PassShape& pass, DType act,
                                      Memory* memory) {
  const int64_t t = pass.tokens();
  const int64_t d = config.hidden_size;
  const int64_t h = config.num_attention_heads;
  const int64_t k = config.num_key_value_heads;
  const int64_t width = config.head_dim;
  const auto take = [&](absl::string_view name, DType dtype, Shape shape) {
    return memory->Take(Purpose::kActivations, absl::StrCat("block.", name), dtype, shape);
  };
  BlockActivations kept;
  kept.in_rstd = take("in_rstd", DType::kF32, {t});
  kept.q_raw = take("q_raw", act, {t, h, width});
  kept.k_raw = take("k_raw", act, {t, k, width});
  kept.v = take("v", act, {t, k, width});
  kept.q_rstd = take("q_rstd", DType::kF32, {t, h});
  kept.k_rstd = take("k_rstd", DType::kF32, {t, k});
  kept.q = take("q", act, {t, h, width});
  kept.k = take("k", act, {t, k, width});
  kept.heads = take("heads", act, {t, h, width});
  kept.lse = take("lse", DType::kF32, {pass.batch, h, pass.length});
  kept.middle = take("middle", act, {t, d});
  kept.mlp_in_rstd = take("mlp_in_rstd", DType::kF32, {t});
  kept.gate = take("gate", act, {t, config.intermediate_size});
  kept.up = take("up", act, {t, config.intermediate_size});
  if (config.hybrid_norm) {
    kept.projected = take("projected", act, {t, d});
    kept.out_rstd = take("out_rstd", DType::kF32, {t});
    kept.mlp_projected = take("mlp_projected", act, {t, d});
    kept.mlp_out_rstd = take("mlp_out_rstd", DType::kF32, {t});
  }
  return kept;
}

BlockWorkspace TakeBlockWorkspace(const ModelConfig& config, const PassShape& pass, DType act,
                                  bool training, Memory* memory) {
  const int64_t t = pass.tokens();
  const int64_t d = config.hidden_size;
  const int64_t h = config.num_attention_heads;
  const int64_t k = config.num_key_value_heads;
  const int64_t width = config.head_dim;
  const auto take = [&](absl::string_view name, Shape shape) {
    return memory->Take(Purpose::kActivations, absl::StrCat("workspace.", name), act, shape);
  };
  BlockWorkspace workspace;
  workspace.normed = take("normed", {t, d});
  workspace.hidden = take("hidden", {t, config.intermediate_size});
  memory->NeedScratch(AttentionScratch(pass.batch, pass.length, h, k, width, act));
  if (!training) return workspace;
  workspace.d_hidden = take("d_hidden", {t, config.intermediate_size});
  workspace.d_branch = take("d_branch", {t, d});
  workspace.d_normed = take("d_normed", {t, d});
  workspace.d_heads = take("d_heads", {t, h, width});
  workspace.dq = take("dq", {t, h, width});
  workspace.dk = take("dk", {t, k, width});
  workspace.dv = take("dv", {t, k, width});
  memory->NeedScratch(RmsNormBackwardScratch(t, d, act));
  memory->NeedScratch(QkNormRopeBackwardScratch(t, h, width, act));
  return workspace;
}

void Block::Forward(const Context& context, const PassShape& pass, const RopeTables& rope,
                    const Tensor& segments, const Tensor& input, const BlockActivations& kept,
                    const BlockWorkspace& workspace, const Tensor& output) const {
  OT_CHECK_EQ(input.dim(0), pass.tokens());
  const AttentionParameters& a = parameters_.attention;
  const MlpParameters& m = parameters_.mlp;
  const double eps = config_.rms_norm_eps;
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));

  RmsNormForward(context, {.x = input,
                           .gain = a.in_norm->value,
                           .residual = Tensor(),
                           .y = workspace.normed,
                           .rstd = kept.in_rstd,
                           .eps = eps});
  Linear(context, workspace.normed, a.q, Flat(kept.q_raw));
  Linear(context, workspace.normed, a.k, Flat(kept.k_raw));
  Linear(context, workspace.normed, a.v, Flat(kept.v));
  QkNormRopeForward(context, {kept.q_raw, a.q_norm->value, kept.q, kept.q_rstd, rope, eps});
  QkNormRopeForward(context, {kept.k_raw, a.k_norm->value, kept.k, kept.k_rstd, rope, eps});
  AttentionForward(context, {kept.q, kept.k, kept.v, segments, kept.heads, kept.lse, scale});
  if (a.out_norm != nullptr) {
    Linear(context, Flat(kept.heads), a.o, kept.projected);
    RmsNormForward(context,
                   {kept.projected, a.out_norm->value, input, kept.middle, kept.out_rstd, eps});
  } else {
    Cast(context, {input, kept.middle});
    Linear(context, Flat(kept.heads), a.o, kept.middle, /*accumulate=*/true);
  }

  RmsNormForward(context, {.x = kept.middle,
                           .gain = m.in_norm->value,
                           .residual = Tensor(),
                           .y = workspace.normed,
                           .rstd = kept.mlp_in_rstd,
                           .eps = eps});
  Linear(context, workspace.normed, m.gate, kept.gate);
  Linear(context, workspace.normed, m.up, kept.up);
  SwiGluForward(context, {kept.gate, kept.up, workspace.hidden});
  if (m.out_norm != nullptr) {
    Linear(context, workspace.hidden, m.down, kept.mlp_projected);
    RmsNormForward(context, {kept.mlp_projected, m.out_norm->value, kept.middle, output,
                             kept.mlp_out_rstd, eps});
  } else {
    Cast(context, {kept.middle, output});
    Linear(context, workspace.hidden, m.down, output, /*accumulate=*/true);
  }
}

void Block::Backward(const Context& context, const PassShape& pass, const RopeTables& rope,
                     const Tensor& segments, const Tensor& input, const BlockActivations& kept,
                     const BlockWorkspace& workspace, const Tensor& d_stream) const {
  OT_CHECK_EQ(d_stream.dim(0), pass.tokens());
  const AttentionParameters& a = parameters_.attention;
  const MlpParameters& m = parameters_.mlp;
  const double eps = config_.rms_norm_eps;
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));

  // MLP branch: d_stream is the gradient of the output, and of `middle` through the residual sum.
  Tensor d_projected = d_stream;
  if (m.out_norm != nullptr) {
    d_projected = workspace.d_branch;
    NormBackward(context, d_stream, kept.mlp_projected, m.out_norm, kept.mlp_out_rstd, d_projected,
                 false);
  }
  SwiGluForward(context, {kept.gate, kept.up, workspace.hidden});
  LinearWeightGradient(context, d_projected, workspace.hidden, m.down);
  LinearInputGradient(context, d_projected, m.down, workspace.d_hidden, false);
  SwiGluBackward(context, {workspace.d_hidden, kept.gate, kept.up, kept.gate, kept.up});
  RmsNormForward(
      context, {kept.middle, m.in_norm->value, Tensor(), workspace.normed, kept.mlp_in_rstd, eps});
  LinearWeightGradient(context, kept.gate, workspace.normed, m.gate);
  LinearWeightGradient(context, kept.up, workspace.normed, m.up);
  LinearInputGradient(context, kept.gate, m.gate, workspace.d_normed, false);
  LinearInputGradient(context, kept.up, m.up, workspace.d_normed, true);
  NormBackward(context, workspace.d_normed, kept.middle, m.in_norm, kept.mlp_in_rstd, d_stream,
               true);

  // Attention branch: d_stream is now the gradient of `middle`, and of the input through the
  // residual sum.
  d_projected = d_stream;
  if (a.out_norm != nullptr) {
    d_projected = workspace.d_branch;
    NormBackward(context, d_stream, kept.projected, a.out_norm, kept.out_rstd, d_projected, false);
  }
  LinearWeightGradient(context, d_projected, Flat(kept.heads), a.o);
  LinearInputGradient(context, d_projected, a.o, Flat(workspace.d_heads), false);
  AttentionBackward(context, {.dout = workspace.d_heads,
                              .q = kept.q,
                              .k = kept.k,
                              .v = kept.v,
                              .segments = segments,
                              .o = kept.heads,
                              .lse = kept.lse,
                              .dq = workspace.dq,
                              .dk = workspace.dk,
                              .dv = workspace.dv,
                              .scale = scale});
  QkNormRopeBackward(context, {.dy = workspace.dq,
                               .x = kept.q_raw,
                               .gain = a.q_norm->value,
                               .rstd = kept.q_rstd,
                               .dx = workspace.dq,
                               .dgain = a.q_norm->gradient,
                               .tables = rope,
                               .accumulate_dgain = Accumulate(a.q_norm)});
  QkNormRopeBackward(context, {.dy = workspace.dk,
                               .x = kept.k_raw,
                               .gain = a.k_norm->value,
                               .rstd = kept.k_rstd,
                               .dx = workspace.dk,
                               .dgain = a.k_norm->gradient,
                               .tables = rope,
                               .accumulate_dgain = Accumulate(a.k_norm)});
  RmsNormForward(context, {input, a.in_norm->value, Tensor(), workspace.normed, kept.in_rstd, eps});
  const Tensor dq = Flat(workspace.dq);
  const Tensor dk = Flat(workspace.dk);
  const Tensor dv = Flat(workspace.dv);
  LinearWeightGradient(context, dq, workspace.normed, a.q);
  LinearWeightGradient(context, dk, workspace.normed, a.k);
  LinearWeightGradient(context, dv, workspace.normed, a.v);
  LinearInputGradient(context, dq, a.q, workspace.d_normed, false);
  LinearInputGradient(context, dk, a.k, workspace.d_normed, true);
  LinearInputGradient(context, dv, a.v, workspace.d_normed, true);
  NormBackward(context, workspace.d_normed, input, a.in_norm, kept.in_rstd, d_stream, true);
}

}  // namespace overtok

#include "model/block.h"

#include <algorithm>
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
                         Placement placement, int64_t heads = 0) {
  return &parameters->Add({.name = std::move(name),
                           .shape = {out, in},
                           .placement = placement,
                           .group = OptimizerGroup::kMuonH,
                           .initializer = Initializer::kNormal,
                           .scale = 1.0 / std::sqrt(static_cast<double>(in)),
                           .groups = heads},
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

// [T, heads, D] as the [T, heads * D] that products see.
Tensor Flat(const Tensor& x) { return x.Reshape({x.dim(0), x.dim(1) * x.dim(2)}); }

}  // namespace

BlockParameters DeclareBlock(const ModelConfig& config, int64_t index, ParameterSet* parameters) {
  const std::string prefix = absl::StrCat("layers.", index, ".");
  const int64_t d = config.hidden_size;
  const int64_t m = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const int64_t heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  const auto rows = Placement::kTensorRows;
  const auto columns = Placement::kTensorColumns;
  BlockParameters block{};
  AttentionParameters& a = block.attention;
  a.in_norm = DeclareGain(parameters, prefix + "attn_in_norm.weight", d);
  a.q = DeclareLinear(parameters, prefix + "attn.q_proj.weight", q_width, d, rows, heads);
  a.k = DeclareLinear(parameters, prefix + "attn.k_proj.weight", kv_width, d, rows, kv_heads);
  a.v = DeclareLinear(parameters, prefix + "attn.v_proj.weight", kv_width, d, rows, kv_heads);
  a.q_norm = DeclareGain(parameters, prefix + "attn.q_norm.weight", config.head_dim);
  a.k_norm = DeclareGain(parameters, prefix + "attn.k_norm.weight", config.head_dim);
  a.o = DeclareLinear(parameters, prefix + "attn.o_proj.weight", d, q_width, columns, heads);
  if (config.hybrid_norm) a.out_norm = DeclareGain(parameters, prefix + "attn_out_norm.weight", d);
  MlpParameters& mlp = block.mlp;
  mlp.in_norm = DeclareGain(parameters, prefix + "mlp_in_norm.weight", d);
  mlp.gate = DeclareLinear(parameters, prefix + "mlp.gate_proj.weight", m, d, rows);
  mlp.up = DeclareLinear(parameters, prefix + "mlp.up_proj.weight", m, d, rows);
  mlp.down = DeclareLinear(parameters, prefix + "mlp.down_proj.weight", d, m, columns);
  if (config.hybrid_norm) mlp.out_norm = DeclareGain(parameters, prefix + "mlp_out_norm.weight", d);
  return block;
}

void AppendBackwardOrder(const BlockParameters& block, std::vector<Parameter*>* order) {
  const AttentionParameters& a = block.attention;
  const MlpParameters& m = block.mlp;
  if (m.out_norm != nullptr) order->push_back(m.out_norm);
  for (Parameter* parameter : {m.down, m.gate, m.up, m.in_norm}) order->push_back(parameter);
  if (a.out_norm != nullptr) order->push_back(a.out_norm);
  for (Parameter* parameter : {a.o, a.q_norm, a.k_norm, a.q, a.k, a.v, a.in_norm}) {
    order->push_back(parameter);
  }
}

BlockShape BlockShape::Of(const ModelConfig& config, const PassShape& pass, const Layout& layout) {
  const int64_t ranks = layout.tensor;
  OT_CHECK(pass.tokens() % ranks == 0 && config.num_attention_heads % ranks == 0);
  Sharding inner;
  inner.split = Split::kRows;
  inner.parts = ranks;
  inner.part = layout.tensor_rank;
  BlockShape shape;
  shape.pass = pass;
  shape.share = pass.tokens() / ranks;
  shape.heads = config.num_attention_heads / ranks;
  shape.kv_heads = std::max<int64_t>(1, config.num_key_value_heads / ranks);
  shape.inner = SizeOfPart(inner, config.intermediate_size);
  return shape;
}

BlockActivations TakeBlockActivations(const ModelConfig& config, const BlockShape& shape, DType act,
                                      Memory* memory) {
  const int64_t t = shape.pass.tokens(), u = shape.share;
  const int64_t d = config.hidden_size;
  const int64_t h = shape.heads, k = shape.kv_heads, m = shape.inner;
  const int64_t width = config.head_dim;
  const auto take = [&](absl::string_view name, DType dtype, Shape of) {
    return memory->Take(Purpose::kActivations, absl::StrCat("block.", name), dtype, of);
  };
  BlockActivations kept;
  kept.in_rstd = take("in_rstd", DType::kF32, {u});
  kept.q_raw = take("q_raw", act, {t, h, width});
  kept.k_raw = take("k_raw", act, {t, k, width});
  kept.v = take("v", act, {t, k, width});
  kept.q_rstd = take("q_rstd", DType::kF32, {t, h});
  kept.k_rstd = take("k_rstd", DType::kF32, {t, k});
  kept.q = take("q", act, {t, h, width});
  kept.k = take("k", act, {t, k, width});
  kept.heads = take("heads", act, {t, h, width});
  kept.lse = take("lse", DType::kF32, {shape.pass.batch, h, shape.pass.length});
  kept.middle = take("middle", act, {u, d});
  kept.mlp_in_rstd = take("mlp_in_rstd", DType::kF32, {u});
  kept.gate = take("gate", act, {t, m});
  kept.up = take("up", act, {t, m});
  if (config.hybrid_norm) {
    kept.projected = take("projected", act, {u, d});
    kept.out_rstd = take("out_rstd", DType::kF32, {u});
    kept.mlp_projected = take("mlp_projected", act, {u, d});
    kept.mlp_out_rstd = take("mlp_out_rstd", DType::kF32, {u});
  }
  return kept;
}

BlockWorkspace TakeBlockWorkspace(const ModelConfig& config, const BlockShape& shape, DType act,
                                  bool training, Memory* memory) {
  const int64_t t = shape.pass.tokens(), u = shape.share;
  const int64_t d = config.hidden_size;
  const int64_t h = shape.heads, k = shape.kv_heads, m = shape.inner;
  const int64_t width = config.head_dim;
  const bool divided = u < t;
  const auto take = [&](absl::string_view name, Shape of) {
    return memory->Take(Purpose::kActivations, absl::StrCat("workspace.", name), act, of);
  };
  BlockWorkspace workspace;
  workspace.normed = take("normed", {t, d});
  workspace.normed_share = divided ? take("normed_share", {u, d}) : workspace.normed;
  if (divided) {
    workspace.branch = take("branch", {t, d});
    if (!config.hybrid_norm) workspace.branch_share = take("branch_share", {u, d});
  }
  workspace.hidden = take("hidden", {t, m});
  const Device* const device = memory->device();
  memory->NeedScratch(
      AttentionScratch(shape.pass.batch, shape.pass.length, h, k, width, act,
                       device != nullptr ? device->attention() : AttentionKind::kKernels));
  if (!training) return workspace;
  workspace.d_hidden = take("d_hidden", {t, m});
  workspace.d_branch = take("d_branch", {u, d});
  workspace.d_normed = take("d_normed", {t, d});
  workspace.d_normed_share = divided ? take("d_normed_share", {u, d}) : workspace.d_normed;
  workspace.d_heads = take("d_heads", {t, h, width});
  workspace.dq = take("dq", {t, h, width});
  workspace.dk = take("dk", {t, k, width});
  workspace.dv = take("dv", {t, k, width});
  memory->NeedScratch(RmsNormBackwardScratch(u, d, act));
  memory->NeedScratch(QkNormRopeBackwardScratch(t, h, width, act));
  return workspace;
}

void Block::NormedInput(const Context& context, const Tensor& x, const Parameter* gain,
                        const Tensor& rstd, const BlockWorkspace& workspace) const {
  RmsNormForward(context, {.x = x,
                           .gain = gain->value,
                           .residual = Tensor(),
                           .y = workspace.normed_share,
                           .rstd = rstd,
                           .eps = config_.rms_norm_eps});
  tokens_->Gather(context, workspace.normed_share, workspace.normed);
}

void Block::BranchOutput(const Context& context, const Tensor& x, const Parameter* weight,
                         const Parameter* norm, const Tensor& residual, const Tensor& projected,
                         const Tensor& rstd, const BlockWorkspace& workspace,
                         const Tensor& out) const {
  const bool divided = tokens_->divided();
  if (norm == nullptr && !divided) {
    Cast(context, {residual, out});
    Linear(context, x, weight, out, /*accumulate=*/true);
    return;
  }
  const Tensor share = norm != nullptr ? projected : workspace.branch_share;
  const Tensor whole = divided ? workspace.branch : share;
  Linear(context, x, weight, whole);
  tokens_->SumShares(context, whole, share);
  if (norm != nullptr) {
    RmsNormForward(context, {share, norm->value, residual, out, rstd, config_.rms_norm_eps});
  } else {
    Cast(context, {residual, out});
    Add(context, {share, out});
  }
}

void Block::Forward(const Context& context, const RopeTables& rope, const Tensor& segments,
                    const Tensor& input, const BlockActivations& kept,
                    const BlockWorkspace& workspace, const Tensor& output) const {
  OT_CHECK_EQ(input.dim(0), tokens_->share());
  const AttentionParameters& a = parameters_.attention;
  const MlpParameters& m = parameters_.mlp;
  const double eps = config_.rms_norm_eps;
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));

  NormedInput(context, input, a.in_norm, kept.in_rstd, workspace);
  Linear(context, workspace.normed, a.q, Flat(kept.q_raw));
  Linear(context, workspace.normed, a.k, Flat(kept.k_raw));
  Linear(context, workspace.normed, a.v, Flat(kept.v));
  QkNormRopeForward(context, {kept.q_raw, a.q_norm->value, kept.q, kept.q_rstd, rope, eps});
  QkNormRopeForward(context, {kept.k_raw, a.k_norm->value, kept.k, kept.k_rstd, rope, eps});
  AttentionForward(context, {kept.q, kept.k, kept.v, segments, kept.heads, kept.lse, scale});
  BranchOutput(context, Flat(kept.heads), a.o, a.out_norm, input, kept.projected, kept.out_rstd,
               workspace, kept.middle);

  NormedInput(context, kept.middle, m.in_norm, kept.mlp_in_rstd, workspace);
  Linear(context, workspace.normed, m.gate, kept.gate);
  Linear(context, workspace.normed, m.up, kept.up);
  SwiGluForward(context, {kept.gate, kept.up, workspace.hidden});
  BranchOutput(context, workspace.hidden, m.down, m.out_norm, kept.middle, kept.mlp_projected,
               kept.mlp_out_rstd, workspace, output);
}

void Block::WeightGradient(const Context& context, const Tensor& dy, const Tensor& x,
                           Parameter* weight) const {
  const GradientSum::Leaf leaf = gradients_->Begin(*weight);
  Matmul(context,
         {.a = dy, .b = x, .c = leaf.tensor, .trans_a = true, .accumulate = leaf.accumulate});
  gradients_->Finish(context, *weight);
}

void Block::NormBackward(const Context& context, const Tensor& dy, const Tensor& x, Parameter* gain,
                         const Tensor& rstd, const Tensor& dx, bool accumulate_dx) const {
  const GradientSum::Leaf leaf = gradients_->Begin(*gain);
  RmsNormBackward(context, {.dy = dy,
                            .x = x,
                            .gain = gain->value,
                            .rstd = rstd,
                            .dx = dx,
                            .dgain = leaf.tensor,
                            .accumulate_dx = accumulate_dx,
                            .accumulate_dgain = leaf.accumulate});
  gradients_->Finish(context, *gain);
}

void Block::QkNormBackward(const Context& context, const RopeTables& rope, const Tensor& dy,
                           const Tensor& x, Parameter* gain, const Tensor& rstd) const {
  const GradientSum::Leaf leaf = gradients_->Begin(*gain);
  QkNormRopeBackward(context, {.dy = dy,
                               .x = x,
                               .gain = gain->value,
                               .rstd = rstd,
                               .dx = dy,
                               .dgain = leaf.tensor,
                               .tables = rope,
                               .accumulate_dgain = leaf.accumulate});
  gradients_->Finish(context, *gain);
}

Tensor Block::BranchGradient(const Context& context, const Tensor& d_out, const Tensor& projected,
                             Parameter* norm, const Tensor& rstd,
                             const BlockWorkspace& workspace) const {
  Tensor share = d_out;
  if (norm != nullptr) {
    share = workspace.d_branch;
    NormBackward(context, d_out, projected, norm, rstd, share, false);
  }
  if (!tokens_->divided()) return share;
  tokens_->Gather(context, share, workspace.branch);
  return workspace.branch;
}

void Block::Backward(const Context& context, const RopeTables& rope, const Tensor& segments,
                     const Tensor& input, const BlockActivations& kept,
                     const BlockWorkspace& workspace, const Tensor& d_stream) const {
  OT_CHECK_EQ(d_stream.dim(0), tokens_->share());
  const AttentionParameters& a = parameters_.attention;
  const MlpParameters& m = parameters_.mlp;
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
  const Tensor& d_normed = workspace.d_normed;

  // MLP branch: d_stream is the gradient of the output, and of `middle` through the residual sum.
  Tensor d_projected = BranchGradient(context, d_stream, kept.mlp_projected, m.out_norm,
                                      kept.mlp_out_rstd, workspace);
  SwiGluForward(context, {kept.gate, kept.up, workspace.hidden});
  WeightGradient(context, d_projected, workspace.hidden, m.down);
  LinearInputGradient(context, d_projected, m.down, workspace.d_hidden, false);
  SwiGluBackward(context, {workspace.d_hidden, kept.gate, kept.up, kept.gate, kept.up});
  NormedInput(context, kept.middle, m.in_norm, kept.mlp_in_rstd, workspace);
  WeightGradient(context, kept.gate, workspace.normed, m.gate);
  WeightGradient(context, kept.up, workspace.normed, m.up);
  LinearInputGradient(context, kept.gate, m.gate, d_normed, false);
  LinearInputGradient(context, kept.up, m.up, d_normed, true);
  tokens_->SumShares(context, d_normed, workspace.d_normed_share);
  NormBackward(context, workspace.d_normed_share, kept.middle, m.in_norm, kept.mlp_in_rstd,
               d_stream, true);

  // Attention branch: d_stream is now the gradient of `middle`, and of the input through the
  // residual sum.
  d_projected =
      BranchGradient(context, d_stream, kept.projected, a.out_norm, kept.out_rstd, workspace);
  WeightGradient(context, d_projected, Flat(kept.heads), a.o);
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
  QkNormBackward(context, rope, workspace.dq, kept.q_raw, a.q_norm, kept.q_rstd);
  QkNormBackward(context, rope, workspace.dk, kept.k_raw, a.k_norm, kept.k_rstd);
  NormedInput(context, input, a.in_norm, kept.in_rstd, workspace);
  const Tensor dq = Flat(workspace.dq);
  const Tensor dk = Flat(workspace.dk);
  const Tensor dv = Flat(workspace.dv);
  WeightGradient(context, dq, workspace.normed, a.q);
  WeightGradient(context, dk, workspace.normed, a.k);
  WeightGradient(context, dv, workspace.normed, a.v);
  LinearInputGradient(context, dq, a.q, d_normed, false);
  LinearInputGradient(context, dk, a.k, d_normed, true);
  LinearInputGradient(context, dv, a.v, d_normed, true);
  tokens_->SumShares(context, d_normed, workspace.d_normed_share);
  NormBackward(context, workspace.d_normed_share, input, a.in_norm, kept.in_rstd, d_stream, true);
}

}  // namespace overtok

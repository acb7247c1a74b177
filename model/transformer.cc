#include "model/transformer.h"

#include <chrono>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/norm.h"

namespace overtok {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Transformer::Transformer(const ModelConfig& config, const LossConfig& loss,
                         const TransformerOptions& options, ParameterSet* parameters,
                         Memory* memory)
    : config_(config), loss_(loss), options_(options) {
  const int64_t d = config.hidden_size;
  // The lookup table starts at Z / d; when tied, products read it too.
  embedding_ = &parameters->Add({.name = "embed.weight",
                                 .shape = {config.vocab_size, d},
                                 .placement = Placement::kShardedRows,
                                 .group = OptimizerGroup::kAdam,
                                 .initializer = Initializer::kNormal,
                                 .scale = 1.0 / static_cast<double>(d)},
                                /*matrix_product=*/config.tie_word_embeddings);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    block_parameters_.push_back(DeclareBlock(config, i, parameters));
  }
  final_norm_ = &parameters->Add({.name = "final_norm.weight",
                                  .shape = {d},
                                  .placement = Placement::kReplicated,
                                  .group = OptimizerGroup::kAdam,
                                  .initializer = Initializer::kOnes,
                                  .scale = 0},
                                 /*matrix_product=*/false);
  head_weight_ = embedding_;
  if (!config.tie_word_embeddings) {
    head_weight_ = &parameters->Add({.name = "lm_head.weight",
                                     .shape = {config.vocab_size, d},
                                     .placement = Placement::kShardedRows,
                                     .group = OptimizerGroup::kAdamH,
                                     .initializer = Initializer::kNormal,
                                     .scale = 1.0 / std::sqrt(static_cast<double>(d))},
                                    /*matrix_product=*/true);
  }
  TakeBuffers(memory);
}

Transformer::Transformer(const Transformer& trained, const TransformerOptions& options,
                         Memory* memory)
    : config_(trained.config_),
      loss_(trained.loss_),
      options_(options),
      embedding_(trained.embedding_),
      block_parameters_(trained.block_parameters_),
      final_norm_(trained.final_norm_),
      head_weight_(trained.head_weight_) {
  OT_CHECK(options.act == trained.options_.act)
      << "a second instance reads the same compute copies";
  TakeBuffers(memory);
}

void Transformer::TakeBuffers(Memory* memory) {
  const PassShape& pass = options_.pass;
  const int64_t t = pass.tokens();
  const int64_t d = config_.hidden_size;
  const DType act = options_.act;
  for (const BlockParameters& parameters : block_parameters_)
    blocks_.emplace_back(config_, parameters);

  const int64_t half = config_.head_dim / 2;
  rope_.cos = memory->Take(Purpose::kActivations, "rope.cos", DType::kF32, {pass.length, half});
  rope_.sin = memory->Take(Purpose::kActivations, "rope.sin", DType::kF32, {pass.length, half});
  if (!memory->dry()) FillRopeTables(config_.rope_theta, act == DType::kBF16, rope_);

  // Training keeps every block's input; evaluation goes back and forth between two streams.
  const int64_t layers = config_.num_hidden_layers;
  const int64_t streams = options_.training ? layers + 1 : std::min<int64_t>(layers + 1, 2);
  for (int64_t i = 0; i < streams; ++i) {
    stream_.push_back(memory->Take(Purpose::kActivations, absl::StrCat("stream.", i), act, {t, d}));
  }
  const int64_t sets =
      options_.training && !options_.recompute ? layers : std::min<int64_t>(layers, 1);
  for (int64_t i = 0; i < sets; ++i)
    activations_.push_back(TakeBlockActivations(config_, pass, act, memory));
  workspace_ = TakeBlockWorkspace(config_, pass, act, options_.training, memory);
  hidden_ = memory->Take(Purpose::kActivations, "hidden", act, {t, d});
  final_rstd_ = memory->Take(Purpose::kActivations, "final_rstd", DType::kF32, {t});
  if (options_.training) {
    d_hidden_ = memory->Take(Purpose::kActivations, "d_hidden", act, {t, d});
    d_stream_ = memory->Take(Purpose::kActivations, "d_stream", act, {t, d});
    memory->NeedScratch(EmbeddingBackwardScratch(t));
  }
  head_ = std::make_unique<LinearCrossEntropy>(memory, t, d, config_.vocab_size, act);
}

void Transformer::Forward(const Context& context, const MicroBatch& batch) {
  EmbeddingForward(context, {batch.tokens, embedding_->value, stream_[0]});
  size_t in = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const size_t out = options_.training ? in + 1 : 1 - in;
    blocks_[i].Forward(context, options_.pass, rope_, batch.segments, stream_[in],
                       kept(static_cast<int64_t>(i)), workspace_, stream_[out]);
    in = out;
  }
  RmsNormForward(context, {.x = stream_[in],
                           .gain = final_norm_->value,
                           .residual = Tensor(),
                           .y = hidden_,
                           .rstd = final_rstd_,
                           .eps = config_.rms_norm_eps});
}

LossSums Transformer::Head(const Context& context, const MicroBatch& batch, bool gradients) {
  LinearCrossEntropyArgs args;
  args.hidden = hidden_;
  args.weight = head_weight_->compute;
  args.targets = batch.targets;
  args.loss_weight = batch.loss_weight;
  if (gradients) {
    args.gradient_weight = batch.gradient_weight;
    args.d_hidden = d_hidden_;
    args.d_weight = head_weight_->gradient;
    args.accumulate_d_weight = head_weight_->gradient_written;
    args.z_loss = loss_.z_loss;
    head_weight_->gradient_written = true;
  }
  return head_->Run(context, args);
}

void Transformer::Backward(const Context& context, const MicroBatch& batch) {
  RmsNormBackward(context, {.dy = d_hidden_,
                            .x = stream_.back(),
                            .gain = final_norm_->value,
                            .rstd = final_rstd_,
                            .dx = d_stream_,
                            .dgain = final_norm_->gradient,
                            .accumulate_dgain = final_norm_->gradient_written});
  final_norm_->gradient_written = true;
  for (size_t i = blocks_.size(); i-- > 0;) {
    const BlockActivations& activations = kept(static_cast<int64_t>(i));
    // The last block's activations are still there; the others' are made again. Its output goes
    // where its input's successor already lies, with the same bits.
    if (options_.recompute && i + 1 < blocks_.size()) {
      blocks_[i].Forward(context, options_.pass, rope_, batch.segments, stream_[i], activations,
                         workspace_, stream_[i + 1]);
    }
    blocks_[i].Backward(context, options_.pass, rope_, batch.segments, stream_[i], activations,
                        workspace_, d_stream_);
  }
  // A tied head has written its part already; rows that no token names must start from zero
  // otherwise.
  if (!embedding_->gradient_written) Fill(context, {embedding_->gradient, 0});
  embedding_->gradient_written = true;
  EmbeddingBackward(context, {batch.tokens, d_stream_, embedding_->gradient});
}

LossSums Transformer::ForwardBackward(const Context& context, const MicroBatch& batch) {
  OT_CHECK(options_.training);
  const double start = Now();
  Forward(context, batch);
  const double middle = Now();
  const LossSums sums = Head(context, batch, /*gradients=*/true);
  Backward(context, batch);
  forward_seconds_ = middle - start;
  backward_seconds_ = Now() - middle;
  return sums;
}

LossSums Transformer::Evaluate(const Context& context, const MicroBatch& batch) {
  Forward(context, batch);
  return Head(context, batch, /*gradients=*/false);
}

}  // namespace overtok

#include "model/transformer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
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
  HeadParameters main;
  main.weight = embedding_;
  if (!config.tie_word_embeddings) {
    main.weight = &parameters->Add({.name = "lm_head.weight",
                                    .shape = {config.vocab_size, d},
                                    .placement = Placement::kShardedRows,
                                    .group = OptimizerGroup::kAdamH,
                                    .initializer = Initializer::kNormal,
                                    .scale = 1.0 / std::sqrt(static_cast<double>(d))},
                                   /*matrix_product=*/true);
  }
  head_parameters_.push_back(main);
  const int64_t positions = options.batch_sequences * options.pass.length;
  const int64_t touched = options.training ? positions : 0;
  ngram_parameters_ = DeclareNgramEmbedding(config, touched, parameters);
  for (const HeadKind kind : HeadsOf(config)) {
    if (kind == HeadKind::kMain) continue;
    head_parameters_.push_back(DeclareHead(config, kind, touched, parameters));
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
      ngram_parameters_(trained.ngram_parameters_),
      head_parameters_(trained.head_parameters_) {
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
  }

  const int64_t positions = options_.batch_sequences * pass.length;
  StepIdsOptions ids;
  ids.sequences = options_.batch_sequences;
  ids.length = pass.length;
  ids.training = options_.training;
  ids.seed = options_.seed;
  ids_ = std::make_unique<StepIds>(config_, ids, memory);
  input_ = std::make_unique<InputEmbedding>(config_, embedding_, ngram_parameters_, positions, t,
                                            act, options_.training, memory);
  HeadOptions head;
  head.sequences = options_.batch_sequences;
  head.length = pass.length;
  head.pass_tokens = t;
  head.steps = options_.steps;
  head.seed = options_.seed;
  head.act = act;
  head.training = options_.training;
  int64_t classes = 0;
  for (const HeadParameters& parameters : head_parameters_) {
    if (options_.training || parameters.kind == HeadKind::kMain) {
      classes = std::max(classes, MostClasses(config_, loss_, parameters.kind, head));
    }
  }
  cross_entropy_ = std::make_unique<LinearCrossEntropy>(memory, t, d, classes, act);
  for (const HeadParameters& parameters : head_parameters_) {
    if (!options_.training && parameters.kind != HeadKind::kMain) continue;
    heads_.push_back(
        std::make_unique<Head>(config_, loss_, parameters, head, cross_entropy_.get(), memory));
  }
}

Tensor Transformer::Segments(int64_t first) const {
  return ids_->segments().Rows(first / options_.pass.length, options_.pass.batch);
}

void Transformer::BeginStep(const Context& context, const BatchView& batch) {
  OT_CHECK(options_.training);
  ids_->Fill(batch, /*scramble=*/false);
  input_->BeginStep(context, *ids_);
  for (size_t h = 0; h < heads_.size(); ++h) {
    heads_[h]->BeginStep(context, ids_->heads()[h], batch.step);
  }
}

std::vector<double> Transformer::weight_sums() const {
  std::vector<double> sums;
  for (const StepIds::HeadIds& head : ids_->heads()) sums.push_back(head.weight_sum);
  return sums;
}

CandidateFacts Transformer::candidate_facts(const Head& head) const {
  CandidateFacts facts;
  if (head.candidates() == nullptr) return facts;
  facts.candidates = head.candidates()->candidates();
  for (const CandidateSet& set : head.candidates()->sets()) {
    ++facts.blocks;
    facts.overflows += set.overflow ? 1 : 0;
    facts.present_mean += static_cast<double>(set.present);
    facts.present_max = std::max(facts.present_max, set.present);
  }
  facts.present_mean /= static_cast<double>(facts.blocks);
  return facts;
}

void Transformer::Forward(const Context& context, int64_t first, const TableReading* reading) {
  input_->Forward(context, *ids_, first, reading, stream_[0]);
  const Tensor segments = Segments(first);
  size_t in = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const size_t out = options_.training ? in + 1 : 1 - in;
    blocks_[i].Forward(context, options_.pass, rope_, segments, stream_[in],
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

std::vector<LossSums> Transformer::RunHeads(const Context& context, int64_t first) {
  std::vector<LossSums> sums;
  for (size_t h = 0; h < heads_.size(); ++h) {
    sums.push_back(heads_[h]->Run(context, ids_->heads()[h], first, hidden_, d_hidden_));
  }
  return sums;
}

void Transformer::Backward(const Context& context, int64_t first) {
  RmsNormBackward(context, {.dy = d_hidden_,
                            .x = stream_.back(),
                            .gain = final_norm_->value,
                            .rstd = final_rstd_,
                            .dx = d_stream_,
                            .dgain = final_norm_->gradient,
                            .accumulate_dgain = final_norm_->gradient_written});
  final_norm_->gradient_written = true;
  const Tensor segments = Segments(first);
  for (size_t i = blocks_.size(); i-- > 0;) {
    const BlockActivations& activations = kept(static_cast<int64_t>(i));
    // The last block's activations are still there; the others' are made again. Its output goes
    // where its input's successor already lies, with the same bits.
    if (options_.recompute && i + 1 < blocks_.size()) {
      blocks_[i].Forward(context, options_.pass, rope_, segments, stream_[i], activations,
                         workspace_, stream_[i + 1]);
    }
    blocks_[i].Backward(context, options_.pass, rope_, segments, stream_[i], activations,
                        workspace_, d_stream_);
  }
  input_->Backward(context, *ids_, first, d_stream_);
}

std::vector<LossSums> Transformer::ForwardBackward(const Context& context, int64_t first_row) {
  OT_CHECK(options_.training && first_row + options_.pass.batch <= options_.batch_sequences);
  const int64_t first = first_row * options_.pass.length;
  const double start = Now();
  Forward(context, first, /*reading=*/nullptr);
  const double middle = Now();
  std::vector<LossSums> sums = RunHeads(context, first);
  Backward(context, first);
  forward_seconds_ = middle - start;
  backward_seconds_ = Now() - middle;
  return sums;
}

LossSums Transformer::Evaluate(const Context& context, const BatchView& batch,
                               const EvaluationContext& evaluation) {
  OT_CHECK(!options_.training);
  BatchView view = batch;
  view.pass = evaluation.pass;
  ids_->Fill(view, evaluation.scramble);
  Forward(context, 0, &evaluation.tables);
  return heads_[0]->Evaluate(context, ids_->heads()[0], hidden_, Tensor());
}

LossSums Transformer::EvaluateWithBias(const Context& context, const Tensor& bias) {
  return heads_[0]->Evaluate(context, ids_->heads()[0], hidden_, bias);
}

}  // namespace overtok

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
                         const Mesh* mesh, Memory* memory)
    : config_(config), loss_(loss), options_(options), mesh_(mesh) {
  const int64_t d = config.hidden_size;
  DivideRows();
  // The lookup table starts at Z / d; when tied, products read it too.
  embedding_ = &parameters->Add({.name = "embed.weight",
                                 .shape = {config.vocab_size, d},
                                 .placement = Placement::kVocabularyRows,
                                 .group = OptimizerGroup::kAdam,
                                 .initializer = Initializer::kNormal,
                                 .scale = 1.0 / static_cast<double>(d),
                                 .used_twice = config.tie_word_embeddings},
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
                                    .placement = Placement::kVocabularyRows,
                                    .group = OptimizerGroup::kAdamH,
                                    .initializer = Initializer::kNormal,
                                    .scale = 1.0 / std::sqrt(static_cast<double>(d))},
                                   /*matrix_product=*/true);
  }
  head_parameters_.push_back(main);
  const int64_t length = options.pass.length;
  const int64_t read = options.training ? own_rows_ * length / mesh->layout().tensor : 0;
  ngram_parameters_ = DeclareNgramEmbedding(config, read, parameters);
  const int64_t scored =
      options.training ? OwnBlocks(loss, OptionsOfHeads()).count() * loss.block_sequences * length
                       : 0;
  for (const HeadKind kind : HeadsOf(config)) {
    if (kind == HeadKind::kMain) continue;
    head_parameters_.push_back(DeclareHead(config, kind, scored, parameters));
  }
  if (options.training) {
    gradients_ =
        std::make_unique<GradientSum>(parameters, micro_batches(), options.gradient_order, memory);
  }
  TakeBuffers(memory);
}

Transformer::Transformer(const Transformer& trained, const TransformerOptions& options,
                         Memory* memory)
    : config_(trained.config_),
      loss_(trained.loss_),
      options_(options),
      mesh_(trained.mesh_),
      embedding_(trained.embedding_),
      block_parameters_(trained.block_parameters_),
      final_norm_(trained.final_norm_),
      ngram_parameters_(trained.ngram_parameters_),
      head_parameters_(trained.head_parameters_) {
  OT_CHECK(options.act == trained.options_.act)
      << "a second instance reads the same compute copies";
  OT_CHECK(!options.training);
  const Memory::InputsOf inputs(memory, InputGroup::kEvaluation);
  DivideRows();
  TakeBuffers(memory);
}

void Transformer::DivideRows() {
  own_rows_ = options_.batch_sequences;
  if (!options_.training) return;
  const Layout& layout = mesh_->layout();
  OT_CHECK_EQ(options_.batch_sequences % layout.data, 0);
  own_rows_ /= layout.data;
  OT_CHECK_EQ(own_rows_ % options_.pass.batch, 0);
  first_row_ = own_rows_ * layout.data_rank;
}

HeadOptions Transformer::OptionsOfHeads() const {
  HeadOptions head;
  head.sequences = options_.batch_sequences;
  head.length = options_.pass.length;
  head.first_row = first_row_;
  head.own_rows = own_rows_;
  head.pass_tokens = options_.pass.tokens();
  head.steps = options_.steps;
  head.seed = options_.seed;
  head.act = options_.act;
  head.training = options_.training;
  return head;
}

void Transformer::TakeBuffers(Memory* memory) {
  const PassShape& pass = options_.pass;
  const BlockShape shape = BlockShape::Of(config_, pass, mesh_->layout());
  const int64_t t = pass.tokens(), u = shape.share;
  const int64_t d = config_.hidden_size;
  const DType act = options_.act;
  int64_t width = d;
  if (config_.ngram_head.has_value()) width = std::max(width, config_.ngram_head->width);
  tokens_ = std::make_unique<TokenShards>(&mesh_->tensor(), t, width, act, memory);
  for (const BlockParameters& parameters : block_parameters_) {
    blocks_.emplace_back(config_, parameters, tokens_.get(), gradients_.get());
  }

  const int64_t half = config_.head_dim / 2;
  rope_.cos =
      memory->TakeInput(Purpose::kActivations, "rope.cos", DType::kF32, {pass.length, half});
  rope_.sin =
      memory->TakeInput(Purpose::kActivations, "rope.sin", DType::kF32, {pass.length, half});
  if (!memory->dry()) FillRopeTables(config_.rope_theta, act == DType::kBF16, rope_);

  // Training keeps every block's input; evaluation goes back and forth between two streams.
  const int64_t layers = config_.num_hidden_layers;
  const int64_t streams = options_.training ? layers + 1 : std::min<int64_t>(layers + 1, 2);
  for (int64_t i = 0; i < streams; ++i) {
    stream_.push_back(memory->Take(Purpose::kActivations, absl::StrCat("stream.", i), act, {u, d}));
  }
  const int64_t sets =
      options_.training && !options_.recompute ? layers : std::min<int64_t>(layers, 1);
  for (int64_t i = 0; i < sets; ++i)
    activations_.push_back(TakeBlockActivations(config_, shape, act, memory));
  workspace_ = TakeBlockWorkspace(config_, shape, act, options_.training, memory);
  hidden_ = memory->Take(Purpose::kActivations, "hidden", act, {u, d});
  final_rstd_ = memory->Take(Purpose::kActivations, "final_rstd", DType::kF32, {u});
  if (options_.training) {
    d_hidden_ = memory->Take(Purpose::kActivations, "d_hidden", act, {u, d});
    d_stream_ = memory->Take(Purpose::kActivations, "d_stream", act, {u, d});
  }

  StepIdsOptions ids;
  ids.sequences = options_.batch_sequences;
  ids.length = pass.length;
  ids.first_row = first_row_;
  ids.own_rows = own_rows_;
  ids.vocabulary = embedding_->sharding;
  ids.training = options_.training;
  ids.seed = options_.seed;
  ids_ = std::make_unique<StepIds>(config_, ids, memory);
  input_ = std::make_unique<InputEmbedding>(config_, embedding_, ngram_parameters_, own_rows_, pass,
                                            act, mesh_, tokens_.get(), gradients_.get(), memory);
  TakeHeads(width, memory);
}

void Transformer::TakeHeads(int64_t width, Memory* memory) {
  const HeadOptions options = OptionsOfHeads();
  const Layout& layout = mesh_->layout();
  const int64_t t = options_.pass.tokens();
  int64_t classes = 0;
  for (const HeadParameters& parameters : head_parameters_) {
    if (options_.training || parameters.kind == HeadKind::kMain) {
      classes = std::max(classes, MostClasses(config_, loss_, parameters.kind, options, layout));
    }
  }
  cross_entropy_ = std::make_unique<LinearCrossEntropy>(memory, t, config_.hidden_size, classes,
                                                        options_.act, &mesh_->tensor());
  HeadWorkspace workspace;
  workspace.cross_entropy = cross_entropy_.get();
  workspace.tokens = tokens_.get();
  workspace.gradients = gradients_.get();
  workspace.mesh = mesh_;
  if (tokens_->divided()) {
    const auto take = [&](const char* what) {
      return memory->Take(Purpose::kHead, what, options_.act, {t * width});
    };
    workspace.whole = take("head.whole");
    if (options_.training) workspace.d_whole = take("head.d_whole");
  }
  for (const HeadParameters& parameters : head_parameters_) {
    if (!options_.training && parameters.kind != HeadKind::kMain) continue;
    heads_.push_back(
        std::make_unique<Head>(config_, loss_, parameters, options, workspace, memory));
  }
}

Tensor Transformer::Segments(const Context& context, int64_t first) const {
  return context.OnDevice(ids_->segments().Rows(first / options_.pass.length, options_.pass.batch));
}

RopeTables Transformer::Rope(const Context& context) const {
  return {context.OnDevice(rope_.cos), context.OnDevice(rope_.sin)};
}

absl::Status Transformer::BeginStep(const BatchView& batch) {
  OT_CHECK(options_.training);
  ids_->Fill(batch, /*scramble=*/false);
  weight_sums_.clear();
  for (const StepIds::HeadIds& head : ids_->heads()) weight_sums_.push_back(head.weight_sum);
  ids_->SetGlobalWeights(weight_sums_);
  OT_RETURN_IF_ERROR(input_->Name(*ids_));
  for (size_t h = 0; h < heads_.size(); ++h) {
    OT_RETURN_IF_ERROR(heads_[h]->BeginStep(ids_->heads()[h], batch.step));
  }
  return absl::OkStatus();
}

void Transformer::FetchRows(const Context& context) {
  input_->Fetch(context, /*reading=*/nullptr);
  for (const auto& head : heads_) head->Fetch(context);
}

void Transformer::ReturnGradients(const Context& context) {
  input_->ReturnGradients(context);
  for (const auto& head : heads_) head->ReturnGradients(context);
}

std::vector<Parameter*> Transformer::BackwardOrder() const {
  std::vector<Parameter*> order;
  for (const auto& head : heads_) head->AppendBackwardOrder(&order);
  order.push_back(final_norm_);
  for (size_t i = block_parameters_.size(); i-- > 0;) {
    AppendBackwardOrder(block_parameters_[i], &order);
  }
  order.push_back(embedding_);
  for (const NgramParameters& table : ngram_parameters_) order.push_back(table.proj);
  return order;
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
  const Tensor segments = Segments(context, first);
  const RopeTables rope = Rope(context);
  size_t in = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const size_t out = options_.training ? in + 1 : 1 - in;
    blocks_[i].Forward(context, rope, segments, stream_[in], kept(static_cast<int64_t>(i)),
                       workspace_, stream_[out]);
    in = out;
  }
  RmsNormForward(context, {.x = stream_[in],
                           .gain = final_norm_->value,
                           .residual = Tensor(),
                           .y = hidden_,
                           .rstd = final_rstd_,
                           .eps = config_.rms_norm_eps});
}

void Transformer::RunHeads(const Context& context, int64_t first) {
  for (size_t h = 0; h < heads_.size(); ++h) {
    heads_[h]->Run(context, ids_->heads()[h], ids_->first_position() + first, hidden_, d_hidden_);
  }
}

void Transformer::Backward(const Context& context, int64_t first) {
  const GradientSum::Leaf leaf = gradients_->Begin(*final_norm_);
  RmsNormBackward(context, {.dy = d_hidden_,
                            .x = stream_.back(),
                            .gain = final_norm_->value,
                            .rstd = final_rstd_,
                            .dx = d_stream_,
                            .dgain = leaf.tensor,
                            .accumulate_dgain = leaf.accumulate});
  gradients_->Finish(context, *final_norm_);
  const Tensor segments = Segments(context, first);
  const RopeTables rope = Rope(context);
  for (size_t i = blocks_.size(); i-- > 0;) {
    const BlockActivations& activations = kept(static_cast<int64_t>(i));
    // The last block's activations are still there; the others' are made again. Its output goes
    // where its input's successor already lies, with the same bits.
    if (options_.recompute && i + 1 < blocks_.size()) {
      blocks_[i].Forward(context, rope, segments, stream_[i], activations, workspace_,
                         stream_[i + 1]);
    }
    blocks_[i].Backward(context, rope, segments, stream_[i], activations, workspace_, d_stream_);
  }
  input_->Backward(context, *ids_, first, d_stream_);
}

void Transformer::ForwardBackward(const Context& context, int64_t index) {
  OT_CHECK(options_.training && index < micro_batches());
  const int64_t first = index * options_.pass.tokens();
  const double start = Now();
  gradients_->Start(index);
  Forward(context, first, /*reading=*/nullptr);
  const double middle = Now();
  RunHeads(context, first);
  Backward(context, first);
  forward_seconds_ = middle - start;
  backward_seconds_ = Now() - middle;
}

absl::StatusOr<LossSums> Transformer::Evaluate(const Context& context, const BatchView& batch,
                                               const EvaluationContext& evaluation) {
  OT_CHECK(!options_.training);
  BatchView view = batch;
  view.pass = evaluation.pass;
  ids_->Fill(view, evaluation.scramble);
  OT_RETURN_IF_ERROR(input_->Name(*ids_));
  heads_[0]->PlaceClasses(ids_->heads()[0], Tensor());
  context.SendInputs(InputGroup::kSchedule);
  context.SendInputs(InputGroup::kEvaluation);
  input_->Fetch(context, &evaluation.tables);
  Forward(context, 0, &evaluation.tables);
  return heads_[0]->Evaluate(context, ids_->heads()[0], hidden_, Tensor());
}

LossSums Transformer::EvaluateWithBias(const Context& context, const Tensor& bias) {
  heads_[0]->PlaceClasses(ids_->heads()[0], bias);
  context.SendInputs(InputGroup::kEvaluation);
  return heads_[0]->Evaluate(context, ids_->heads()[0], hidden_, bias);
}

}  // namespace overtok

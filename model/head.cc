#include "model/head.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/ops/embedding.h"
#include "core/ops/matmul.h"

namespace overtok {
namespace {

std::string NameIn(HeadKind kind, absl::string_view what) {
  return absl::StrCat(NameOf(kind), ".", what);
}

int64_t BlocksOf(const LossConfig& loss, const HeadOptions& options) {
  return options.sequences / loss.block_sequences;
}

// Candidates of a block at most, where the head samples in any step; 0 where it never does.
int64_t MostCandidates(const ModelConfig& model, const LossConfig& loss, HeadKind kind,
                       const HeadOptions& options) {
  if (!options.training) return 0;
  if (IsHashed(kind)) {
    return std::min(ClassesOf(model, kind), loss.block_sequences * options.length);
  }
  int64_t most = 0;
  if (!loss.sampled_softmax.has_value()) return most;
  for (const SampledStage& stage : loss.sampled_softmax->stages) {
    most = std::max(most, stage.candidates);
  }
  return most;
}

// Which of the head's classes this rank of a tensor group scores: rows of its part of the weight,
// or of a hashed head's table any rows, since they are fetched.
Sharding ClassSharding(HeadKind kind, const Layout& layout) {
  Sharding sharding;
  if (layout.tensor == 1) return sharding;
  sharding.split = IsHashed(kind) ? Split::kScattered : layout.vocabulary;
  sharding.parts = layout.tensor;
  sharding.part = layout.tensor_rank;
  return sharding;
}

}  // namespace

HeadParameters DeclareHead(const ModelConfig& config, HeadKind kind, int64_t touched,
                           ParameterSet* parameters) {
  const int64_t d = config.hidden_size;
  const double scale = 1.0 / std::sqrt(static_cast<double>(d));
  HeadParameters head;
  head.kind = kind;
  head.proj = &parameters->Add({.name = NameIn(kind, "proj.weight"),
                                .shape = {d, d},
                                .placement = Placement::kReplicated,
                                .group = OptimizerGroup::kMuonH,
                                .initializer = Initializer::kNormal,
                                .scale = scale},
                               /*matrix_product=*/true);
  if (!IsHashed(kind)) {
    head.weight = &parameters->Add({.name = NameIn(kind, "lm_head.weight"),
                                    .shape = {config.vocab_size, d},
                                    .placement = Placement::kVocabularyRows,
                                    .group = OptimizerGroup::kAdamH,
                                    .initializer = Initializer::kNormal,
                                    .scale = scale},
                                   /*matrix_product=*/true);
    return head;
  }
  const int64_t width = config.ngram_head->width;
  head.table = &parameters->Add({.name = NameIn(kind, "table.weight"),
                                 .shape = {ClassesOf(config, kind), width},
                                 .placement = Placement::kTableRows,
                                 .group = OptimizerGroup::kAdam,
                                 .initializer = Initializer::kNormal,
                                 .scale = 1.0 / static_cast<double>(width),
                                 .update = UpdateKind::kTable,
                                 .touched_capacity = touched},
                                /*matrix_product=*/false);
  head.out = &parameters->Add({.name = NameIn(kind, "out.weight"),
                               .shape = {d, width},
                               .placement = Placement::kReplicated,
                               .group = OptimizerGroup::kMuonH,
                               .initializer = Initializer::kNormal,
                               .scale = 1.0 / std::sqrt(static_cast<double>(width))},
                              /*matrix_product=*/true);
  return head;
}

BlockRange OwnBlocks(const LossConfig& loss, const HeadOptions& options) {
  const int64_t size = loss.block_sequences, end = options.first_row + options.own_rows;
  return {options.first_row / size, (end + size - 1) / size};
}

int64_t MostClasses(const ModelConfig& model, const LossConfig& loss, HeadKind kind,
                    const HeadOptions& options, const Layout& layout) {
  return IsHashed(kind) ? MostCandidates(model, loss, kind, options)
                        : LargestPart(ClassSharding(kind, layout), ClassesOf(model, kind));
}

Head::Head(const ModelConfig& model, const LossConfig& loss, const HeadParameters& parameters,
           const HeadOptions& options, const HeadWorkspace& workspace, Memory* memory)
    : model_(model),
      loss_(loss),
      parameters_(parameters),
      options_(options),
      workspace_(workspace),
      loss_weight_(LossWeightOf(model, parameters.kind)),
      block_positions_(loss.block_sequences * options.length) {
  const int64_t d = model.hidden_size, labels = options.sequences * options.length;
  const int64_t u = workspace.tokens->share();
  const HeadKind kind = parameters.kind;
  const int64_t classes = ClassesOf(model, kind);
  const Sharding sharding = ClassSharding(kind, workspace.mesh->layout());
  const auto take = [&](Purpose purpose, const char* what, DType dtype, Shape shape) {
    return memory->Take(purpose, NameIn(kind, what), dtype, shape);
  };
  const auto take_input = [&](const char* what, DType dtype, int64_t count) {
    return memory->TakeInput(Purpose::kBatches, NameIn(kind, what), dtype, {count});
  };
  if (!hashed()) {
    most_rows_ = LargestPart(sharding, classes);
    if (divided()) {
      places_ = take_input("places", DType::kU32, options.own_rows * options.length);
      if (!options.training) {
        bias_ = take_input("bias", DType::kF32, SizeOfPart(sharding, classes));
      }
    }
  }
  if (!options.training) return;
  // A micro-batch is scored in parts where blocks of windows sample.
  const int64_t runs = options.own_rows * options.length / options.pass_tokens;
  sums_ = take(Purpose::kHead, "sums", DType::kF64,
               {runs * (options.pass_tokens / block_positions_ + 2), 3});
  if (parameters.proj != nullptr) {
    states_ = take(Purpose::kActivations, "states", options.act, {u, d});
    d_states_ = take(Purpose::kActivations, "d_states", options.act, {u, d});
  }
  const int64_t most = MostCandidates(model, loss, kind, options);
  if (most == 0) return;
  OT_CHECK_EQ(options.sequences % loss.block_sequences, 0);
  const int64_t blocks = BlocksOf(loss, options);
  CandidateOptions candidates;
  candidates.classes = classes;
  candidates.seed = options.seed;
  candidates.head = NameOf(kind);
  if (hashed()) {
    candidates.correction = model.ngram_head->correction;
    if (loss.sampled_softmax.has_value()) candidates.negatives = loss.sampled_softmax->negatives;
  } else {
    candidates.correction = loss.sampled_softmax->correction;
    candidates.negatives = loss.sampled_softmax->negatives;
  }
  sets_ = std::make_unique<CandidateSets>(candidates, labels, blocks, most, memory);
  shares_ = std::make_unique<CandidateShares>(sharding, classes, labels, blocks, most, memory);
  const int64_t rows = std::min(most, LargestPart(sharding, classes));
  gathered_ = take(Purpose::kHead, "gathered", options.act, {rows, width()});
  d_gathered_ = take(Purpose::kHead, "d_gathered", DType::kF32, {rows, width()});
  memory->NeedScratch(EmbeddingBackwardScratch(rows));
  if (!hashed()) return;
  narrow_ = take(Purpose::kActivations, "narrow", options.act, {u, width()});
  d_narrow_ = take(Purpose::kActivations, "d_narrow", options.act, {u, width()});
  const int64_t named = OwnBlocks(loss, options).count() * most;
  slots_ = take_input("slots", DType::kU32, named);
  slots_builder_ = std::make_unique<RowSlots>(memory->dry() ? 0 : named);
  exchange_ = std::make_unique<TableExchange>(parameters.table, workspace.mesh,
                                              std::min(named, classes), /*training=*/true, memory);
}

absl::Status Head::BeginStep(const StepIds::HeadIds& ids, int64_t step) {
  open_block_ = -1;
  sampling_ = false;
  scored_ = 0;
  parts_.clear();
  const int64_t classes = ClassesOf(model_, kind());
  int64_t candidates = classes;
  if (sets_ != nullptr) {
    candidates =
        hashed() ? std::min(classes, block_positions_)
                 : StageCandidates(loss_.sampled_softmax->stages, classes, options_.steps, step);
    sampling_ = hashed() || candidates < classes;
  }
  if (!sampling_) {
    if (divided()) {
      FillPlaces(parameters_.weight->sharding, classes,
                 ids.targets.data<uint32_t>() + first_position(), places_);
    }
    return absl::OkStatus();
  }
  const std::span<const uint32_t> labels(ids.targets.data<uint32_t>(),
                                         static_cast<size_t>(ids.targets.elements()));
  sets_->Build(labels, candidates, step);
  shares_->Build(*sets_, labels);
  if (hashed()) return NameRows();
  const std::vector<CandidateSet>& sets = sets_->sets();
  parameters_.weight->compute_needed =
      std::any_of(sets.begin(), sets.end(), [](const CandidateSet& set) { return set.overflow; });
  return absl::OkStatus();
}

// This rank's candidates of its blocks one after the other; a block of positions as labels cannot
// overflow.
absl::Status Head::NameRows() {
  const BlockRange own = OwnBlocks(loss_, options_);
  auto* slots = slots_.data<uint32_t>();
  int64_t end = 0;
  slots_begin_.assign(1, 0);
  for (int64_t block = own.first; block < own.end; ++block) {
    const Tensor& ids = shares_->shares()[static_cast<size_t>(block)].ids;
    std::copy_n(ids.data<uint32_t>(), ids.elements(), slots + end);
    end += ids.elements();
    slots_begin_.push_back(end);
  }
  TouchedRows& touched = parameters_.table->touched;
  slots_builder_->Fill({slots, static_cast<size_t>(end)}, &touched, slots);
  return exchange_->Name(touched.used(), slots_.Rows(0, end));
}

Tensor Head::Slots(int64_t block) const {
  const auto own = static_cast<size_t>(block - OwnBlocks(loss_, options_).first);
  return slots_.Rows(slots_begin_[own], slots_begin_[own + 1] - slots_begin_[own]);
}

void Head::Fetch(const Context& context) {
  if (exchange_ != nullptr) exchange_->Fetch(context, /*reading=*/nullptr);
}

void Head::ReturnGradients(const Context& context) {
  if (exchange_ != nullptr) exchange_->ReturnGradients(context);
}

void Head::OpenBlock(const Context& context, int64_t block) {
  open_block_ = block;
  const CandidateShare& share = shares_->shares()[static_cast<size_t>(block)];
  const int64_t count = share.ids.elements();
  if (count == 0) return;
  const Tensor rows = gathered_.Rows(0, count);
  if (hashed()) {
    exchange_->Read(context, share.ids, Slots(block), /*reading=*/nullptr, rows);
    return;
  }
  // From the master weights: the same rounding as that of a compute copy.
  EmbeddingForward(
      context,
      {.ids = context.OnDevice(share.rows), .table = parameters_.weight->value, .y = rows});
}

Tensor Head::Features(const Context& context, const Tensor& hidden) {
  if (parameters_.proj == nullptr) return hidden;
  Matmul(context, {.a = hidden, .b = parameters_.proj->compute, .c = states_, .trans_b = true});
  if (!hashed()) return states_;
  Matmul(context, {.a = states_, .b = parameters_.out->compute, .c = narrow_});
  return narrow_;
}

void Head::FeaturesBackward(const Context& context, const Tensor& hidden, const Tensor& d_hidden) {
  if (parameters_.proj == nullptr) return;
  // gradient = dy^T x
  const auto add = [&](const Tensor& dy, const Tensor& x, Parameter* parameter) {
    const GradientSum::Leaf leaf = workspace_.gradients->Begin(*parameter);
    Matmul(context,
           {.a = dy, .b = x, .c = leaf.tensor, .trans_a = true, .accumulate = leaf.accumulate});
    workspace_.gradients->Finish(context, *parameter);
  };
  if (hashed()) {
    add(states_, d_narrow_, parameters_.out);
    Matmul(context,
           {.a = d_narrow_, .b = parameters_.out->compute, .c = d_states_, .trans_b = true});
  }
  add(d_states_, hidden, parameters_.proj);
  Matmul(context,
         {.a = d_states_, .b = parameters_.proj->compute, .c = d_hidden, .accumulate = true});
}

void Head::AppendBackwardOrder(std::vector<Parameter*>* order) const {
  // A tied weight is complete when the input embedding is.
  if (!hashed() && !parameters_.weight->spec.used_twice) order->push_back(parameters_.weight);
  if (hashed()) order->push_back(parameters_.out);
  if (parameters_.proj != nullptr) order->push_back(parameters_.proj);
}

void Head::RunShare(const Context& context, int64_t block, const Tensor& sums,
                    LinearCrossEntropyArgs* args) {
  const CandidateShare& share = shares_->shares()[static_cast<size_t>(block)];
  const int64_t count = share.ids.elements();
  if (open_block_ != block) OpenBlock(context, block);
  args->weight = gathered_.Rows(0, count);
  args->bias = context.OnDevice(share.bias);
  args->d_weight = d_gathered_.Rows(0, count);
  workspace_.cross_entropy->Run(context, *args, sums, share.most);
  Parameter& parameter = hashed() ? *parameters_.table : *parameters_.weight;
  const Tensor gradient = workspace_.gradients->BeginRows(context, parameter);
  if (count > 0) {
    EmbeddingBackward(context, {.ids = context.OnDevice(hashed() ? Slots(block) : share.rows),
                                .dy = args->d_weight,
                                .dtable = gradient});
  }
}

void Head::RunAll(const Context& context, const Tensor& sums, LinearCrossEntropyArgs* args) {
  OT_CHECK(!hashed()) << "a block has at least as many candidates as positions";
  const GradientSum::Leaf leaf = workspace_.gradients->Begin(*parameters_.weight);
  args->weight = parameters_.weight->compute;
  args->d_weight = leaf.tensor;
  args->accumulate_d_weight = leaf.accumulate;
  workspace_.cross_entropy->Run(context, *args, sums, most_rows_);
}

void Head::Run(const Context& context, const StepIds::HeadIds& ids, int64_t first,
               const Tensor& hidden, const Tensor& d_hidden) {
  const int64_t tokens = workspace_.tokens->tokens();
  const Tensor features = Features(context, hidden);
  const Tensor d_features = parameters_.proj == nullptr ? d_hidden
                            : hashed()                  ? d_narrow_
                                                        : d_states_;
  const auto whole_of = [&](const Tensor& storage, const Tensor& share) {
    return divided() ? storage.Rows(0, tokens * width()).Reshape({tokens, width()}) : share;
  };
  const Tensor whole = whole_of(workspace_.whole, features);
  const Tensor d_whole = whole_of(workspace_.d_whole, d_features);
  workspace_.tokens->Gather(context, features, whole);
  const int64_t end = first + tokens;
  parts_.push_back(0);
  for (int64_t begin = first; begin < end;) {
    // Without sampling the micro-batch is one range.
    const int64_t block = begin / block_positions_;
    const int64_t block_end = (block + 1) * block_positions_;
    const int64_t count = (sampling_ ? std::min(end, block_end) : end) - begin;
    LinearCrossEntropyArgs args;
    args.hidden = whole.Rows(begin - first, count);
    args.targets = context.OnDevice(sampling_   ? shares_->targets().Rows(begin, count)
                                    : divided() ? places_.Rows(begin - first_position(), count)
                                                : ids.targets.Rows(begin, count));
    args.loss_weight = context.OnDevice(ids.loss_weight.Rows(begin, count));
    args.gradient_weight = context.OnDevice(ids.gradient_weight.Rows(begin, count));
    args.d_hidden = d_whole.Rows(begin - first, count);
    if (kind() == HeadKind::kMain) args.z_loss = loss_.z_loss;
    if (!hashed()) args.focal_gamma = loss_.focal_gamma;
    const bool all = !sampling_ || sets_->sets()[static_cast<size_t>(block)].overflow;
    const Tensor sums = sums_.Rows(scored_, 1).Reshape({3});
    if (all) {
      RunAll(context, sums, &args);
    } else {
      RunShare(context, block, sums, &args);
    }
    ++scored_;
    ++parts_.back();
    begin += count;
  }
  workspace_.gradients->Finish(context, hashed() ? *parameters_.table : *parameters_.weight);
  if (exchange_ != nullptr && workspace_.gradients->last()) exchange_->StartReturn();
  workspace_.tokens->SumShares(context, d_whole, d_features);
  FeaturesBackward(context, hidden, d_hidden);
}

void Head::PlaceClasses(const StepIds::HeadIds& ids, const Tensor& bias) {
  if (!divided()) return;
  const Parameter& weight = *parameters_.weight;
  const int64_t classes = ClassesOf(model_, kind());
  FillPlaces(weight.sharding, classes, ids.targets.data<uint32_t>(), places_);
  if (!bias.defined()) return;
  auto* own = bias_.data<float>();
  for (int64_t i = 0; i < bias_.elements(); ++i) {
    own[i] = bias.data<float>()[GlobalOf(weight.sharding, classes, i)];
  }
}

LossSums Head::Evaluate(const Context& context, const StepIds::HeadIds& ids, const Tensor& hidden,
                        const Tensor& bias) {
  OT_CHECK(kind() == HeadKind::kMain);
  LinearCrossEntropyArgs args;
  args.hidden = hidden;
  args.weight = parameters_.weight->compute;
  args.bias = context.OnDevice(divided() && bias.defined() ? bias_ : bias);
  args.targets = context.OnDevice(divided() ? places_ : ids.targets);
  args.loss_weight = context.OnDevice(ids.loss_weight);
  if (divided()) {
    args.hidden = workspace_.whole.Reshape({workspace_.tokens->tokens(), width()});
    workspace_.tokens->Gather(context, hidden, args.hidden);
  }
  return workspace_.cross_entropy->RunAndRead(context, args, most_rows_);
}

}  // namespace overtok

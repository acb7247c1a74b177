#include "model/head.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/ops/elementwise.h"
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
                                    .placement = Placement::kShardedRows,
                                    .group = OptimizerGroup::kAdamH,
                                    .initializer = Initializer::kNormal,
                                    .scale = scale},
                                   /*matrix_product=*/true);
    return head;
  }
  const int64_t width = config.ngram_head->width;
  head.table = &parameters->Add({.name = NameIn(kind, "table.weight"),
                                 .shape = {ClassesOf(config, kind), width},
                                 .placement = Placement::kShardedRows,
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

int64_t MostClasses(const ModelConfig& model, const LossConfig& loss, HeadKind kind,
                    const HeadOptions& options) {
  return IsHashed(kind) ? MostCandidates(model, loss, kind, options) : ClassesOf(model, kind);
}

Head::Head(const ModelConfig& model, const LossConfig& loss, const HeadParameters& parameters,
           const HeadOptions& options, LinearCrossEntropy* cross_entropy, Memory* memory)
    : model_(model),
      loss_(loss),
      parameters_(parameters),
      options_(options),
      cross_entropy_(cross_entropy),
      loss_weight_(LossWeightOf(model, parameters.kind)),
      block_positions_(loss.block_sequences * options.length) {
  const int64_t d = model.hidden_size, positions = options.sequences * options.length;
  const HeadKind kind = parameters.kind;
  const auto take = [&](Purpose purpose, const char* what, DType dtype, Shape shape) {
    return memory->Take(purpose, NameIn(kind, what), dtype, shape);
  };
  if (!options.training) return;
  if (parameters.proj != nullptr) {
    states_ = take(Purpose::kActivations, "states", options.act, {options.pass_tokens, d});
    d_states_ = take(Purpose::kActivations, "d_states", options.act, {options.pass_tokens, d});
  }
  const int64_t most = MostCandidates(model, loss, kind, options);
  if (most == 0) return;
  OT_CHECK_EQ(options.sequences % loss.block_sequences, 0);
  const int64_t blocks = BlocksOf(loss, options);
  CandidateOptions candidates;
  candidates.classes = ClassesOf(model, kind);
  candidates.seed = options.seed;
  candidates.head = NameOf(kind);
  if (hashed()) {
    candidates.correction = model.ngram_head->correction;
    if (loss.sampled_softmax.has_value()) candidates.negatives = loss.sampled_softmax->negatives;
  } else {
    candidates.correction = loss.sampled_softmax->correction;
    candidates.negatives = loss.sampled_softmax->negatives;
  }
  sets_ = std::make_unique<CandidateSets>(candidates, positions, blocks, most, memory);
  const int64_t width = hashed() ? model.ngram_head->width : d;
  gathered_ = take(Purpose::kHead, "gathered", options.act, {most, width});
  d_gathered_ = take(Purpose::kHead, "d_gathered", DType::kF32, {most, width});
  memory->NeedScratch(EmbeddingBackwardScratch(most));
  if (!hashed()) return;
  narrow_ = take(Purpose::kActivations, "narrow", options.act, {options.pass_tokens, width});
  d_narrow_ = take(Purpose::kActivations, "d_narrow", options.act, {options.pass_tokens, width});
  slots_ = take(Purpose::kBatches, "slots", DType::kU32, {blocks, most});
  slots_builder_ = std::make_unique<RowSlots>(memory->dry() ? 0 : blocks * most);
}

void Head::BeginStep(const Context& context, const StepIds::HeadIds& ids, int64_t step) {
  open_block_ = -1;
  sampling_ = false;
  if (sets_ == nullptr) return;
  const int64_t classes = ClassesOf(model_, kind());
  int64_t candidates = std::min(classes, block_positions_);
  if (!hashed()) {
    candidates = StageCandidates(loss_.sampled_softmax->stages, classes, options_.steps, step);
    if (candidates >= classes) return;
  }
  sampling_ = true;
  sets_->Build({ids.targets.data<uint32_t>(), static_cast<size_t>(ids.targets.elements())},
               candidates, step);
  if (!hashed()) {
    const std::vector<CandidateSet>& sets = sets_->sets();
    parameters_.weight->compute_needed =
        std::any_of(sets.begin(), sets.end(), [](const CandidateSet& set) { return set.overflow; });
    return;
  }
  // Every block's candidates one after the other; a block of positions as labels cannot overflow.
  const int64_t blocks = BlocksOf(loss_, options_);
  std::span<const uint32_t> all(sets_->sets()[0].ids.data<uint32_t>(),
                                static_cast<size_t>(blocks * candidates));
  TouchedRows& touched = parameters_.table->touched;
  slots_builder_->Fill(all, &touched, slots_.data<uint32_t>());
  Fill(context, {touched.used_gradient(), 0});
}

void Head::OpenBlock(const Context& context, const CandidateSet& set, int64_t block) {
  open_block_ = block;
  block_gradient_written_ = false;
  // From the master weights: the same rounding as that of a compute copy.
  const Parameter& source = hashed() ? *parameters_.table : *parameters_.weight;
  EmbeddingForward(
      context, {.ids = set.ids, .table = source.value, .y = gathered_.Rows(0, set.ids.elements())});
}

void Head::CloseBlock(const Context& context, const CandidateSet& set, int64_t block) {
  open_block_ = -1;
  const int64_t count = set.ids.elements();
  const Tensor gradient = d_gathered_.Rows(0, count);
  if (hashed()) {
    const Tensor slots = slots_.Reshape({slots_.elements()}).Rows(block * count, count);
    EmbeddingBackward(
        context,
        {.ids = slots, .dy = gradient, .dtable = parameters_.table->touched.used_gradient()});
    return;
  }
  Parameter& weight = *parameters_.weight;
  if (!weight.gradient_written) Fill(context, {weight.gradient, 0});
  weight.gradient_written = true;
  EmbeddingBackward(context, {.ids = set.ids, .dy = gradient, .dtable = weight.gradient});
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
  // gradient (+)= dy^T x
  const auto add = [&](const Tensor& dy, const Tensor& x, Parameter* parameter) {
    Matmul(context, {.a = dy,
                     .b = x,
                     .c = parameter->gradient,
                     .trans_a = true,
                     .accumulate = parameter->gradient_written});
    parameter->gradient_written = true;
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

// Where the classes of a block come from, and where their gradient goes.
void Head::CompleteArgs(int64_t block, LinearCrossEntropyArgs* args) {
  if (sampling_) {
    const CandidateSet& set = sets_->sets()[static_cast<size_t>(block)];
    if (!set.overflow) {
      const int64_t count = set.ids.elements();
      args->weight = gathered_.Rows(0, count);
      args->bias = set.bias;
      args->d_weight = d_gathered_.Rows(0, count);
      args->accumulate_d_weight = block_gradient_written_;
      block_gradient_written_ = true;
      return;
    }
  }
  OT_CHECK(!hashed()) << "a block has at least as many candidates as positions";
  args->weight = parameters_.weight->compute;
  args->d_weight = parameters_.weight->gradient;
  args->accumulate_d_weight = parameters_.weight->gradient_written;
  parameters_.weight->gradient_written = true;
}

LossSums Head::Run(const Context& context, const StepIds::HeadIds& ids, int64_t first,
                   const Tensor& hidden, const Tensor& d_hidden) {
  const Tensor features = Features(context, hidden);
  const Tensor d_features = parameters_.proj == nullptr ? d_hidden
                            : hashed()                  ? d_narrow_
                                                        : d_states_;
  const int64_t end = first + hidden.dim(0);
  LossSums sums;
  for (int64_t begin = first; begin < end;) {
    // Without sampling the micro-batch is one range.
    const int64_t block = begin / block_positions_;
    const int64_t block_end = (block + 1) * block_positions_;
    const int64_t count = (sampling_ ? std::min(end, block_end) : end) - begin;
    const CandidateSet* set = sampling_ ? &sets_->sets()[static_cast<size_t>(block)] : nullptr;
    if (set != nullptr && set->overflow) set = nullptr;
    if (set != nullptr && open_block_ != block) OpenBlock(context, *set, block);
    LinearCrossEntropyArgs args;
    args.hidden = features.Rows(begin - first, count);
    args.targets = (sampling_ ? sets_->ranks() : ids.targets).Rows(begin, count);
    args.loss_weight = ids.loss_weight.Rows(begin, count);
    args.gradient_weight = ids.gradient_weight.Rows(begin, count);
    args.d_hidden = d_features.Rows(begin - first, count);
    if (kind() == HeadKind::kMain) args.z_loss = loss_.z_loss;
    if (!hashed()) args.focal_gamma = loss_.focal_gamma;
    CompleteArgs(block, &args);
    const LossSums part = cross_entropy_->Run(context, args);
    sums.loss += part.loss;
    sums.lse_squared += part.lse_squared;
    sums.weight += part.weight;
    begin += count;
    if (set != nullptr && begin == block_end) CloseBlock(context, *set, block);
  }
  FeaturesBackward(context, hidden, d_hidden);
  return sums;
}

LossSums Head::Evaluate(const Context& context, const StepIds::HeadIds& ids, const Tensor& hidden,
                        const Tensor& bias) {
  OT_CHECK(kind() == HeadKind::kMain);
  LinearCrossEntropyArgs args;
  args.hidden = hidden;
  args.weight = parameters_.weight->compute;
  args.bias = bias;
  args.targets = ids.targets;
  args.loss_weight = ids.loss_weight;
  return cross_entropy_->Run(context, args);
}

}  // namespace overtok

#include "model/input_embedding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/matmul.h"
#include "core/ops/table.h"

namespace overtok {

std::vector<NgramParameters> DeclareNgramEmbedding(const ModelConfig& config, int64_t touched,
                                                   ParameterSet* parameters) {
  std::vector<NgramParameters> declared;
  if (!config.ngram_embedding.has_value()) return declared;
  const int64_t width = config.ngram_embedding->width;
  const auto tables = InputTables(*config.ngram_embedding, config.vocab_size);
  for (size_t t = 0; t < tables.size(); ++t) {
    NgramParameters& pair = declared.emplace_back();
    pair.table = &parameters->Add({.name = absl::StrCat("ngram.", t, ".table.weight"),
                                   .shape = {static_cast<int64_t>(tables[t].modulus), width},
                                   .placement = Placement::kShardedRows,
                                   .group = OptimizerGroup::kAdam,
                                   .initializer = Initializer::kNormal,
                                   .scale = 1.0 / static_cast<double>(width),
                                   .update = UpdateKind::kTable,
                                   .touched_capacity = touched,
                                   .freezes = true},
                                  /*matrix_product=*/false);
    pair.proj = &parameters->Add({.name = absl::StrCat("ngram.", t, ".proj.weight"),
                                  .shape = {config.hidden_size, width},
                                  .placement = Placement::kReplicated,
                                  .group = OptimizerGroup::kMuonH,
                                  .initializer = Initializer::kNormal,
                                  .scale = 1.0 / std::sqrt(static_cast<double>(width))},
                                 /*matrix_product=*/true);
  }
  return declared;
}

InputEmbedding::InputEmbedding(const ModelConfig& config, Parameter* embedding,
                               std::vector<NgramParameters> tables, int64_t positions,
                               int64_t pass_tokens, DType act, bool training, Memory* memory)
    : embedding_(embedding), tables_(std::move(tables)) {
  if (training) memory->NeedScratch(EmbeddingBackwardScratch(pass_tokens));
  if (tables_.empty()) return;
  scale_ = 1.0 / static_cast<double>(1 + tables_.size());
  table_scale_ = training ? scale_ / (1.0 - config.ngram_embedding->row_dropout) : scale_;
  const int64_t width = config.ngram_embedding->width;
  for (size_t t = 0; t < tables_.size(); ++t) {
    gathered_.push_back(memory->Take(Purpose::kActivations, absl::StrCat("ngram.", t, ".gathered"),
                                     act, {pass_tokens, width}));
    if (!training) continue;
    slots_.push_back(memory->Take(Purpose::kBatches, absl::StrCat("ngram.", t, ".slots"),
                                  DType::kU32, {positions}));
  }
  if (!training) return;
  d_gathered_ = memory->Take(Purpose::kActivations, "ngram.d_gathered", act, {pass_tokens, width});
  slots_builder_.emplace_back(memory->dry() ? 0 : positions);
}

void InputEmbedding::BeginStep(const Context& context, const StepIds& ids) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Tensor& rows = ids.rows(t);
    TouchedRows& touched = tables_[t].table->touched;
    slots_builder_[0].Fill({rows.data<uint32_t>(), static_cast<size_t>(rows.elements())}, &touched,
                           slots_[t].data<uint32_t>());
    if (touched.count > 0) Fill(context, {touched.used_gradient(), 0});
  }
}

void InputEmbedding::Forward(const Context& context, const StepIds& ids, int64_t first,
                             const TableReading* reading, const Tensor& x) {
  const int64_t tokens = x.dim(0);
  EmbeddingForward(context, {.ids = ids.tokens().Rows(first, tokens),
                             .table = embedding_->value,
                             .y = x,
                             .scale = scale_});
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Tensor rows = ids.rows(t).Rows(first, tokens);
    if (reading == nullptr) {
      EmbeddingForward(context, {.ids = rows, .table = tables_[t].table->value, .y = gathered_[t]});
    } else {
      TableLookup(context, {.state = tables_[t].table->table,
                            .rule = reading->rule,
                            .replay = reading->replay,
                            .ids = rows,
                            .y = gathered_[t]});
    }
    Matmul(context, {.a = gathered_[t],
                     .b = tables_[t].proj->compute,
                     .c = x,
                     .trans_b = true,
                     .accumulate = true,
                     .alpha = static_cast<float>(table_scale_)});
  }
}

void InputEmbedding::Backward(const Context& context, const StepIds& ids, int64_t first,
                              const Tensor& dx) {
  const int64_t tokens = dx.dim(0);
  // A tied head has written its part already; rows that no token names must start from zero
  // otherwise.
  if (!embedding_->gradient_written) Fill(context, {embedding_->gradient, 0});
  embedding_->gradient_written = true;
  EmbeddingBackward(context, {.ids = ids.tokens().Rows(first, tokens),
                              .dy = dx,
                              .dtable = embedding_->gradient,
                              .scale = scale_});
  for (size_t t = 0; t < tables_.size(); ++t) {
    Parameter& proj = *tables_[t].proj;
    Matmul(context, {.a = dx,
                     .b = gathered_[t],
                     .c = proj.gradient,
                     .trans_a = true,
                     .accumulate = proj.gradient_written,
                     .alpha = static_cast<float>(table_scale_)});
    proj.gradient_written = true;
    const TouchedRows& touched = tables_[t].table->touched;
    if (touched.count == 0) continue;  // dropout struck everywhere
    Matmul(
        context,
        {.a = dx, .b = proj.compute, .c = d_gathered_, .alpha = static_cast<float>(table_scale_)});
    EmbeddingBackward(context, {.ids = slots_[t].Rows(first, tokens),
                                .dy = d_gathered_,
                                .dtable = touched.used_gradient()});
  }
}

}  // namespace overtok

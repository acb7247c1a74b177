#include "model/input_embedding.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
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
                                   .placement = Placement::kTableRows,
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
                               std::vector<NgramParameters> tables, int64_t own_rows,
                               const PassShape& pass, DType act, const Mesh* mesh,
                               const TokenShards* tokens, GradientSum* gradients, Memory* memory)
    : embedding_(embedding), tables_(std::move(tables)), tokens_(tokens), gradients_(gradients) {
  const int64_t t = pass.tokens(), u = tokens->share();
  if (training()) memory->NeedScratch(EmbeddingBackwardScratch(t));
  if (tokens->divided()) {
    whole_ = memory->Take(Purpose::kActivations, "embedding.whole", act, {t, config.hidden_size});
  }
  if (tables_.empty()) return;
  scale_ = 1.0 / static_cast<double>(1 + tables_.size());
  table_scale_ = training() ? scale_ / (1.0 - config.ngram_embedding->row_dropout) : scale_;
  const int64_t width = config.ngram_embedding->width, own = ShareOf(own_rows * pass.length);
  const bool slots = training() || mesh->layout().world() > 1;
  for (size_t i = 0; i < tables_.size(); ++i) {
    const auto take_ids = [&](const char* what, int64_t count) {
      return memory->TakeInput(Purpose::kBatches, absl::StrCat("ngram.", i, ".", what), DType::kU32,
                               {count});
    };
    Parameter& table = *tables_[i].table;
    Source& source = sources_.emplace_back();
    source.gathered = memory->Take(Purpose::kActivations, absl::StrCat("ngram.", i, ".gathered"),
                                   act, {u, width});
    if (tokens->divided()) source.rows = take_ids("rows", own);
    if (slots) source.slots = take_ids("slots", own);
    const int64_t asked = std::min(own, table.spec.shape[0]);
    if (slots && !training()) {
      source.named.rows = take_ids("named", asked);
    }
    source.exchange = std::make_unique<TableExchange>(&table, mesh, asked, training(), memory);
  }
  if (slots) slots_builder_.emplace_back(memory->dry() ? 0 : own);
  if (training()) {
    d_gathered_ = memory->Take(Purpose::kActivations, "ngram.d_gathered", act, {u, width});
  }
}

absl::Status InputEmbedding::Name(const StepIds& ids) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    Source& source = sources_[i];
    if (!tokens_->divided()) {
      source.rows = ids.rows(i);
    } else {
      const int64_t share = tokens_->share();
      for (int64_t to = 0; to < source.rows.elements(); to += share) {
        const int64_t from = to * tokens_->ranks() + tokens_->first();
        std::copy_n(ids.rows(i).data<uint32_t>() + from, share, source.rows.data<uint32_t>() + to);
      }
    }
    if (slots_builder_.empty()) continue;
    TouchedRows& named = training() ? tables_[i].table->touched : source.named;
    slots_builder_[0].Fill(
        {source.rows.data<uint32_t>(), static_cast<size_t>(source.rows.elements())}, &named,
        source.slots.data<uint32_t>());
    OT_RETURN_IF_ERROR(source.exchange->Name(named.used(), source.slots));
  }
  return absl::OkStatus();
}

void InputEmbedding::Fetch(const Context& context, const TableReading* reading) {
  for (Source& source : sources_) source.exchange->Fetch(context, reading);
}

void InputEmbedding::Forward(const Context& context, const StepIds& ids, int64_t first,
                             const TableReading* reading, const Tensor& x) {
  const Tensor whole = tokens_->divided() ? whole_ : x;
  EmbeddingForward(context, {.ids = context.OnDevice(ids.places().Rows(first, tokens_->tokens())),
                             .table = embedding_->value,
                             .y = whole,
                             .scale = scale_});
  tokens_->SumShares(context, whole, x);
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Source& source = sources_[t];
    const int64_t from = ShareOf(first), count = tokens_->share();
    const Tensor slots = source.slots.defined() ? source.slots.Rows(from, count) : Tensor();
    source.exchange->Read(context, source.rows.Rows(from, count), slots, reading, source.gathered);
    Matmul(context, {.a = source.gathered,
                     .b = tables_[t].proj->compute,
                     .c = x,
                     .trans_b = true,
                     .accumulate = true,
                     .alpha = static_cast<float>(table_scale_)});
  }
}

void InputEmbedding::Backward(const Context& context, const StepIds& ids, int64_t first,
                              const Tensor& dx) {
  // Of one rank dx itself.
  const Tensor whole = tokens_->divided() ? whole_ : dx;
  tokens_->Gather(context, dx, whole);
  EmbeddingBackward(context, {.ids = context.OnDevice(ids.places().Rows(first, tokens_->tokens())),
                              .dy = whole,
                              .dtable = gradients_->BeginRows(context, *embedding_),
                              .scale = scale_});
  gradients_->Finish(context, *embedding_);
  const auto alpha = static_cast<float>(table_scale_);
  for (size_t t = 0; t < tables_.size(); ++t) {
    const Source& source = sources_[t];
    Parameter& proj = *tables_[t].proj;
    const GradientSum::Leaf leaf = gradients_->Begin(proj);
    Matmul(context, {.a = dx,
                     .b = source.gathered,
                     .c = leaf.tensor,
                     .trans_a = true,
                     .accumulate = leaf.accumulate,
                     .alpha = alpha});
    gradients_->Finish(context, proj);
    Parameter& table = *tables_[t].table;
    if (table.touched.count > 0) {  // dropout may have struck everywhere
      Matmul(context, {.a = dx, .b = proj.compute, .c = d_gathered_, .alpha = alpha});
      const Tensor slots = source.slots.Rows(ShareOf(first), tokens_->share());
      EmbeddingBackward(context, {.ids = context.OnDevice(slots),
                                  .dy = d_gathered_,
                                  .dtable = gradients_->BeginRows(context, table)});
      gradients_->Finish(context, table);
    }
    if (gradients_->last()) source.exchange->StartReturn();
  }
}

void InputEmbedding::ReturnGradients(const Context& context) {
  for (Source& source : sources_) source.exchange->ReturnGradients(context);
}

}  // namespace overtok

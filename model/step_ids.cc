#include "model/step_ids.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/io/hash.h"
#include "core/ops/embedding.h"
#include "core/rng.h"

namespace overtok {
namespace {

// Keys of the random streams that ids draw from.
uint64_t KeyOf(absl::string_view stream, uint64_t seed) {
  return Xxh3(stream.data(), static_cast<int64_t>(stream.size()), seed);
}

}  // namespace

void FillPlaces(const Sharding& sharding, int64_t classes, const uint32_t* ids,
                const Tensor& places) {
  auto* out = places.data<uint32_t>();
  for (int64_t i = 0; i < places.elements(); ++i) {
    const int64_t place = PlaceOf(sharding, classes, ids[i]);
    out[i] = place < 0 ? kNoRow : static_cast<uint32_t>(place);
  }
}

StepIds::StepIds(const ModelConfig& model, const StepIdsOptions& options, Memory* memory)
    : model_(model), options_(options) {
  const int64_t n = options.sequences * options.length, own = options.own_rows * options.length;
  OT_CHECK_LE(options.first_row + options.own_rows, options.sequences);
  const auto take = [&](const std::string& name, DType dtype, Shape shape) {
    return memory->TakeInput(Purpose::kBatches, name, dtype, shape);
  };
  places_ = take("batch.tokens", DType::kU32, {own});
  segments_ = take("batch.segments", DType::kI32, {options.own_rows, options.length});
  if (model.ngram_embedding.has_value()) {
    tables_ = InputTables(*model.ngram_embedding, model.vocab_size);
    for (size_t t = 0; t < tables_.size(); ++t) {
      rows_.push_back(take(absl::StrCat("batch.ngram.", t), DType::kU32, {own}));
    }
  }
  for (const HeadKind kind : HeadsOf(model)) {
    if (!options.training && kind != HeadKind::kMain) break;
    const std::string prefix = absl::StrCat("batch.", NameOf(kind));
    HeadIds& ids = heads_.emplace_back();
    ids.kind = kind;
    ids.targets = take(prefix + ".targets", DType::kU32, {n});
    ids.loss_weight = take(prefix + ".loss_weight", DType::kF32, {n});
    if (options.training) {
      ids.gradient_weight = take(prefix + ".gradient_weight", DType::kF32, {n});
    }
  }
}

void StepIds::Fill(const BatchView& batch, bool scramble) {
  OT_CHECK(batch.sequences == options_.sequences && batch.length == options_.length);
  BatchView own = batch;
  own.sequences = options_.own_rows;
  own.tokens += first_position();
  own.segments += first_position();
  own.loss_weight += first_position();
  FillPlaces(options_.vocabulary, model_.vocab_size, own.tokens, places_);
  std::copy_n(own.segments, own.positions(), segments_.data<int32_t>());
  for (size_t t = 0; t < tables_.size(); ++t) {
    NgramHash hash;
    hash.scramble = scramble;
    if (model_.ngram_embedding->each_pass == NgramEmbeddingConfig::EachPass::kRehash) {
      hash.pass = batch.pass;
      hash.key = KeyOf(absl::StrCat("ngram.", t, ".hash"), options_.seed);
    }
    FillInputRows(tables_[t], static_cast<uint64_t>(model_.vocab_size), hash, own,
                  rows_[t].data<uint32_t>());
    if (options_.training && model_.ngram_embedding->row_dropout > 0) DropRows(batch.step, t);
  }
  for (HeadIds& head : heads_) {
    FillTargets(model_, head.kind, batch, head.targets.data<uint32_t>());
    head.weight_sum = FillTargetWeights(head.kind, batch, head.loss_weight.data<float>());
  }
}

// A pure function of (seed, table, step, position in the batch).
void StepIds::DropRows(int64_t step, size_t table) {
  const uint64_t key = KeyOf(absl::StrCat("ngram.", table, ".dropout"), options_.seed);
  const double p = model_.ngram_embedding->row_dropout;
  auto* rows = rows_[table].data<uint32_t>();
  for (int64_t i = 0; i < rows_[table].elements(); ++i) {
    const auto words =
        Philox(key, static_cast<uint64_t>(first_position() + i), static_cast<uint64_t>(step));
    if (UniformOpen(words[0], words[1]) < p) rows[i] = kNoRow;
  }
}

void StepIds::SetGlobalWeights(const std::vector<double>& weight_sums) {
  OT_CHECK(options_.training);
  OT_CHECK_EQ(weight_sums.size(), heads_.size());
  for (size_t h = 0; h < heads_.size(); ++h) {
    const double scale =
        weight_sums[h] > 0 ? LossWeightOf(model_, heads_[h].kind) / weight_sums[h] : 0.0;
    const float* weight = heads_[h].loss_weight.data<float>();
    auto* out = heads_[h].gradient_weight.data<float>();
    for (int64_t i = 0; i < heads_[h].loss_weight.elements(); ++i) {
      out[i] = static_cast<float>(static_cast<double>(weight[i]) * scale);
    }
  }
}

}  // namespace overtok

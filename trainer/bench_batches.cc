#include "trainer/bench_batches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/rng.h"
#include "trainer/host_tensors.h"

namespace overtok {
namespace {

constexpr double kTextExponent = 1.16;
constexpr std::array kDistributions = {IdDistribution::kUniform, IdDistribution::kZipf,
                                       IdDistribution::kText};

}  // namespace

const char* NameOf(IdDistribution distribution) {
  switch (distribution) {
    case IdDistribution::kUniform:
      return "uniform";
    case IdDistribution::kZipf:
      return "zipf";
    case IdDistribution::kText:
      return "text";
  }
  return "unknown";
}

absl::StatusOr<IdDistribution> IdDistributionNamed(absl::string_view name) {
  for (const IdDistribution distribution : kDistributions)
    if (name == NameOf(distribution)) return distribution;
  return absl::InvalidArgumentError(
      absl::StrCat("--ids is \"", name, "\", expected uniform, zipf or text"));
}

BatchSource::BatchSource(const Config& config, IdDistribution distribution, uint64_t seed)
    : sequences_(config.train.batch_sequences),
      length_(config.data.sequence_length),
      vocabulary_(static_cast<uint64_t>(config.model.vocab_size)),
      seed_(seed) {
  if (distribution == IdDistribution::kUniform) return;
  const double exponent = distribution == IdDistribution::kZipf ? 1 : kTextExponent;
  below_.resize(vocabulary_);
  double sum = 0;
  for (size_t i = 0; i < below_.size(); ++i) {
    sum += std::pow(static_cast<double>(i + 1), -exponent);
    below_[i] = sum;
  }
  for (double& value : below_) value /= sum;
}

void BatchSource::Fill(int64_t step, Batch* batch) const {
  batch->Resize(sequences_, length_);
  batch->weight_sum = 0;
  for (size_t i = 0; i < batch->tokens.size(); ++i) {
    const auto words = Philox(seed_, i, static_cast<uint64_t>(step));
    if (below_.empty()) {
      batch->tokens[i] = static_cast<uint32_t>(words[0] % vocabulary_);
    } else {
      const auto it =
          std::lower_bound(below_.begin(), below_.end(), UniformOpen(words[0], words[1]));
      const auto id = static_cast<uint64_t>(it - below_.begin());
      batch->tokens[i] = static_cast<uint32_t>(std::min(id, vocabulary_ - 1));
    }
    batch->segments[i] = 0;
    const bool last = (static_cast<int64_t>(i) + 1) % length_ == 0;
    batch->loss_weight[i] = last ? 0.0F : 1.0F;
    batch->weight_sum += batch->loss_weight[i];
  }
}

void AgeTables(const BatchSource& source, int64_t steps, TrainStep* train) {
  std::vector<Parameter*> tables;
  for (Parameter& parameter : train->parameters().all()) {
    if (parameter.is_table()) tables.push_back(&parameter);
  }
  if (tables.empty()) return;
  std::vector<std::vector<uint8_t>> touched;
  touched.reserve(tables.size());
  for (const Parameter* table : tables) {
    touched.emplace_back(static_cast<size_t>(table->value.dim(0)), 0);
  }
  HostTensors states(train->context(), train->parameters().table_states());
  states.Read();
  const auto state_of = [&](const char* what, const Parameter& table) -> const Tensor* {
    for (const ShardedTensor& entry : states.tensors()) {
      if (entry.name == what + table.spec.name) return &entry.tensor;
    }
    return nullptr;
  };
  Batch batch;
  for (int64_t step = 0; step < steps; ++step) {
    source.Fill(step, &batch);
    train->parameters().StartStep();
    const absl::Status named = train->model().BeginStep(ViewOf(batch, step));
    OT_CHECK(named.ok()) << named.message();
    for (size_t t = 0; t < tables.size(); ++t) {
      const TouchedRows& rows = tables[t]->owned;
      const uint32_t* row = rows.rows.data<uint32_t>();
      const Tensor* last = state_of("table.last/", *tables[t]);
      for (int64_t i = 0; i < rows.count; ++i) {
        touched[t][row[i]] = 1;
        if (last != nullptr) last->data<uint32_t>()[row[i]] = static_cast<uint32_t>(step + 1);
      }
    }
  }
  // Small beside the values, alive in every element: the replay has its full work to do.
  constexpr float kFirst = 1e-5F, kSecond = 1e-9F;
  for (size_t t = 0; t < tables.size(); ++t) {
    const int64_t rows = tables[t]->value.dim(0);
    for (const auto& [what, value] : {std::pair{"table.m/", kFirst}, {"table.v/", kSecond}}) {
      const Tensor* moment = state_of(what, *tables[t]);
      if (moment == nullptr) continue;
      const int64_t width = moment->elements() / rows;
      auto* values = moment->data<float>();
      for (int64_t row = 0; row < rows; ++row) {
        if (touched[t][static_cast<size_t>(row)] != 0)
          std::fill_n(values + row * width, width, value);
      }
    }
  }
  train->parameters().Forget();
  states.Write();
}

}  // namespace overtok

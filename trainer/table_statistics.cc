#include "trainer/table_statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_format.h"
#include "core/console.h"
#include "core/io/hash.h"
#include "core/memory.h"
#include "data/loader.h"
#include "model/ngram_rows.h"
#include "model/step_ids.h"
#include "trainer/train_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

// An n-gram and the row that it has.
struct Entry {
  uint64_t ngram;  // a 64-bit hash of its tokens (and of the pass that named its row)
  uint32_t row;
  bool operator<(const Entry& other) const {
    return ngram != other.ngram ? ngram < other.ngram : row < other.row;
  }
  bool operator==(const Entry& other) const = default;
};

void SortDistinct(std::vector<Entry>* entries) {
  std::sort(entries->begin(), entries->end());
  entries->erase(std::unique(entries->begin(), entries->end()), entries->end());
}

// What one table has seen so far.
class Counter {
 public:
  explicit Counter(uint64_t modulus)
      : hits_(static_cast<size_t>(modulus), 0), touched_in_(static_cast<size_t>(modulus), 0) {}

  // The rows of one step's positions and the n-grams that named them.
  void AddStep(const uint32_t* rows, const std::vector<uint64_t>& ngrams) {
    ++steps_;
    int64_t touched = 0;
    for (size_t i = 0; i < ngrams.size(); ++i) {
      const uint32_t row = rows[i];
      ++hits_[row];
      if (touched_in_[row] != steps_) {
        touched_in_[row] = steps_;
        ++touched;
      }
      entries_.push_back({ngrams[i], row});
    }
    touched_sum_ += touched;
    touched_most_ = std::max(touched_most_, touched);
    // Memory stays within twice the distinct n-grams and a step.
    if (entries_.size() > 2 * distinct_ + (size_t{1} << 20)) {
      SortDistinct(&entries_);
      distinct_ = entries_.size();
    }
  }

  void Finish(TableUse* use) {
    SortDistinct(&entries_);
    use->touched_per_step = static_cast<double>(touched_sum_) / std::max<uint32_t>(steps_, 1);
    use->touched_most = touched_most_;
    use->distinct_ngrams = static_cast<int64_t>(entries_.size());
    std::vector<uint32_t> ngrams_of(hits_.size(), 0);
    for (const Entry& entry : entries_) ++ngrams_of[entry.row];
    std::vector<uint32_t> hits;
    for (size_t row = 0; row < hits_.size(); ++row) {
      if (ngrams_of[row] > 1) use->sharing_ngrams += ngrams_of[row];
      if (hits_[row] > 0) hits.push_back(hits_[row]);
    }
    std::sort(hits.begin(), hits.end());
    use->distinct_rows = static_cast<int64_t>(hits.size());
    // Of n things thrown into m places at random.
    const auto n = static_cast<double>(use->distinct_ngrams);
    const auto m = static_cast<double>(use->modulus);
    use->expected_rows = -m * std::expm1(n * std::log1p(-1 / m));
    use->expected_sharing = n > 0 ? -n * std::expm1((n - 1) * std::log1p(-1 / m)) : 0.0;
    if (hits.empty()) return;
    const auto quantile = [&](double q) {
      const double place = std::ceil(q * static_cast<double>(hits.size())) - 1;
      return static_cast<int64_t>(hits[static_cast<size_t>(std::max(place, 0.0))]);
    };
    use->median_hits = quantile(0.5);
    use->hits_90 = quantile(0.9);
    use->hits_99 = quantile(0.99);
    use->most_hits = hits.back();
    for (const uint32_t h : hits) {
      size_t bin = 0;
      while ((uint64_t{h} >> (bin + 1)) > 0) ++bin;
      if (use->histogram.size() <= bin) use->histogram.resize(bin + 1, 0);
      ++use->histogram[bin];
      use->hits += h;
    }
  }

 private:
  std::vector<uint32_t> hits_, touched_in_;  // by row
  std::vector<Entry> entries_;
  size_t distinct_ = 0;
  uint32_t steps_ = 0;
  int64_t touched_sum_ = 0, touched_most_ = 0;
};

// A 64-bit hash of every position's n-gram of `order` tokens, as FillInputRows forms it.
void FillNgrams(const BatchView& batch, int64_t order, int64_t pass, std::vector<uint64_t>* out) {
  out->resize(static_cast<size_t>(batch.positions()));
  for (int64_t row = 0; row < batch.sequences; ++row) {
    for (int64_t t = 0; t < batch.length; ++t) {
      const int64_t at = row * batch.length + t;
      std::array<uint32_t, 4> z{};
      for (int64_t back = 0; back < order; ++back) {
        const bool known = back <= t && batch.segments[at - back] == batch.segments[at];
        z[static_cast<size_t>(back)] = known ? batch.tokens[at - back] : 0;
      }
      (*out)[static_cast<size_t>(at)] = Xxh3(z.data(), sizeof(z), static_cast<uint64_t>(pass));
    }
  }
}

}  // namespace

absl::StatusOr<TableStatistics> MeasureTables(LoadedConfig loaded, int64_t steps) {
  if (!loaded.config.model.ngram_embedding.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(loaded.Where("model.ngram_embedding"),
                     ": null; there are no input tables. Give model.ngram_embedding.rows=..."));
  }
  OT_ASSIGN_OR_RETURN(const TrainingData data, OpenTrainingData(&loaded));
  const Config& config = loaded.config;
  const NgramEmbeddingConfig& ngram = *config.model.ngram_embedding;
  if (steps < 0 || steps > config.train.steps) {
    return absl::InvalidArgumentError(absl::StrCat("--steps is ", steps, ", expected 1 to ",
                                                   config.train.steps,
                                                   ", the run's steps, or 0 "
                                                   "for all of them"));
  }
  if (steps == 0) steps = config.train.steps;
  StepIdsOptions options;
  options.sequences = options.own_rows = config.train.batch_sequences;
  options.length = config.data.sequence_length;
  options.training = false;  // rows that dropout leaves out count as read
  options.seed = config.train.seed;
  Memory memory(Memory::Mode::kReal);
  StepIds ids(config.model, options, &memory);
  std::vector<Counter> counters;
  for (const NgramTable& table : ids.tables()) counters.emplace_back(table.modulus);

  Progress progress("counting", static_cast<double>(steps), "steps");
  const bool rehashed = ngram.each_pass == NgramEmbeddingConfig::EachPass::kRehash;
  Batch batch;
  std::vector<uint64_t> ngrams;
  for (int64_t step = 0; step < steps; ++step) {
    OT_RETURN_IF_ERROR(FillBatch(*data.corpus, data.order, data.loader, step, &batch));
    const BatchView view = ViewOf(batch, step);
    ids.Fill(view, /*scramble=*/false);
    int64_t filled = 0;
    for (size_t t = 0; t < counters.size(); ++t) {
      const int64_t order = ids.tables()[t].order;
      if (order != filled) FillNgrams(view, order, rehashed ? view.pass : 0, &ngrams);
      filled = order;
      counters[t].AddStep(ids.rows(t).data<uint32_t>(), ngrams);
    }
    progress.Update(static_cast<double>(step + 1));
  }

  TableStatistics statistics;
  statistics.steps = steps;
  statistics.tokens = steps * config.tokens_per_step();
  const int64_t run_windows = config.train.steps * config.train.batch_sequences;
  statistics.run_unique_tokens =
      std::min(run_windows, data.order.length()) * config.data.sequence_length;
  for (size_t t = 0; t < counters.size(); ++t) {
    TableUse& use = statistics.tables.emplace_back();
    use.table = static_cast<int64_t>(t);
    use.order = ids.tables()[t].order;
    use.modulus = ids.tables()[t].modulus;
    use.common_factor = std::gcd(static_cast<uint64_t>(config.model.vocab_size), use.modulus);
    counters[t].Finish(&use);
    statistics.table_parameters += static_cast<int64_t>(use.modulus) * ngram.width;
  }
  statistics.parameters_per_token = static_cast<double>(statistics.table_parameters) /
                                    static_cast<double>(statistics.run_unique_tokens);
  return statistics;
}

std::string TableStatistics::ToText() const {
  std::string text = absl::StrFormat(
      "%d steps, %d tokens; %s table parameters, %s unique tokens in the run: %.3g parameters a "
      "token\n",
      steps, tokens, FormatCount(static_cast<double>(table_parameters)),
      FormatCount(static_cast<double>(run_unique_tokens)), parameters_per_token);
  absl::StrAppendFormat(&text, "%5s %5s %11s %6s %12s %12s %12s %12s %12s %12s\n", "table", "order",
                        "modulus", "gcd V", "rows/step", "rows", "at random", "n-grams", "sharing",
                        "at random");
  for (const TableUse& use : tables) {
    absl::StrAppendFormat(&text, "%5d %5d %11d %6d %12.1f %12d %12.0f %12d %12d %12.0f\n",
                          use.table, use.order, use.modulus, use.common_factor,
                          use.touched_per_step, use.distinct_rows, use.expected_rows,
                          use.distinct_ngrams, use.sharing_ngrams, use.expected_sharing);
  }
  text += "hits of a touched row:\n";
  absl::StrAppendFormat(&text, "%5s %9s %9s %9s %9s   rows with 1, 2-3, 4-7, ... hits\n", "table",
                        "median", "90 %", "99 %", "most");
  for (const TableUse& use : tables) {
    absl::StrAppendFormat(&text, "%5d %9d %9d %9d %9d  ", use.table, use.median_hits, use.hits_90,
                          use.hits_99, use.most_hits);
    for (const int64_t rows : use.histogram) absl::StrAppend(&text, " ", rows);
    text += "\n";
  }
  return text;
}

std::string TableStatistics::ToJson() const {
  nlohmann::ordered_json json = {{"steps", steps},
                                 {"tokens", tokens},
                                 {"run_unique_tokens", run_unique_tokens},
                                 {"table_parameters", table_parameters},
                                 {"parameters_per_token", parameters_per_token}};
  json["tables"] = nlohmann::ordered_json::array();
  for (const TableUse& use : tables) {
    json["tables"].push_back({{"table", use.table},
                              {"order", use.order},
                              {"modulus", use.modulus},
                              {"common_factor_with_vocabulary", use.common_factor},
                              {"rows_touched_per_step", use.touched_per_step},
                              {"rows_touched_most", use.touched_most},
                              {"hits", use.hits},
                              {"distinct_rows", use.distinct_rows},
                              {"distinct_rows_at_random", use.expected_rows},
                              {"distinct_ngrams", use.distinct_ngrams},
                              {"sharing_ngrams", use.sharing_ngrams},
                              {"sharing_ngrams_at_random", use.expected_sharing},
                              {"hits_median", use.median_hits},
                              {"hits_90", use.hits_90},
                              {"hits_99", use.hits_99},
                              {"hits_most", use.most_hits},
                              {"rows_by_log2_hits", use.histogram}});
  }
  return json.dump(1) + "\n";
}

}  // namespace overtok

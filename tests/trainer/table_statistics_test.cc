// Table statistics against counts by hand, and the tables of a benchmark that starts late.
#include "trainer/table_statistics.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/comm/mesh.h"
#include "data/loader.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/bench_batches.h"
#include "trainer/bench_step.h"
#include "trainer/training_data.h"

namespace overtok {
namespace {

using testing::MakeTinyCorpus;
using testing::MethodOverrides;
using testing::TemporaryDirectory;
using testing::TinyConfig;

TEST(TableStatisticsTest, EqualsACountByHand) {
  const TemporaryDirectory directory;
  OT_ASSERT_OK(MakeTinyCorpus(directory.path()));
  LoadedConfig loaded = TinyConfig(directory.path(), "run", MethodOverrides()).value();
  const absl::StatusOr<TableStatistics> statistics = MeasureTables(loaded, 4);
  OT_ASSERT_OK(statistics);
  EXPECT_EQ(statistics->steps, 4);
  EXPECT_EQ(statistics->tokens, 4 * 48);
  EXPECT_EQ(statistics->run_unique_tokens, 160);
  EXPECT_EQ(statistics->table_parameters, (101 + 105) * 6);
  EXPECT_EQ(statistics->parameters_per_token, 206.0 * 6 / 160);
  ASSERT_EQ(statistics->tables.size(), 2u);

  const absl::StatusOr<TrainingData> data = OpenTrainingData(&loaded);
  OT_ASSERT_OK(data);
  // The 2-gram table: (x_t + 64 x_{t-1}) mod 101, 0 before a window or a document.
  std::set<std::pair<uint32_t, uint32_t>> bigrams;
  std::map<uint32_t, std::set<std::pair<uint32_t, uint32_t>>> sharers;
  std::map<uint32_t, int64_t> hits;
  int64_t touched = 0;
  Batch batch;
  for (int64_t step = 0; step < 4; ++step) {
    OT_ASSERT_OK(FillBatch(*data->corpus, data->order, data->loader, step, &batch));
    std::set<uint32_t> rows;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      const bool known = i % 16 != 0 && batch.segments[i - 1] == batch.segments[i];
      const std::pair<uint32_t, uint32_t> bigram(batch.tokens[i], known ? batch.tokens[i - 1] : 0);
      const uint32_t row = (bigram.first + 64 * bigram.second) % 101;
      bigrams.insert(bigram);
      sharers[row].insert(bigram);
      ++hits[row];
      rows.insert(row);
    }
    touched += static_cast<int64_t>(rows.size());
  }
  const TableUse& use = statistics->tables[0];
  EXPECT_EQ(use.order, 2);
  EXPECT_EQ(use.modulus, 101u);
  EXPECT_EQ(use.common_factor, 1u);
  EXPECT_EQ(use.touched_per_step, static_cast<double>(touched) / 4);
  EXPECT_EQ(use.distinct_rows, static_cast<int64_t>(hits.size()));
  EXPECT_EQ(use.distinct_ngrams, static_cast<int64_t>(bigrams.size()));
  EXPECT_EQ(use.hits, 4 * 48);
  int64_t sharing = 0, most = 0, rows_by_histogram = 0;
  for (const auto& [row, all] : sharers) {
    if (all.size() > 1) sharing += static_cast<int64_t>(all.size());
    most = std::max(most, hits[row]);
  }
  EXPECT_EQ(use.sharing_ngrams, sharing);
  EXPECT_EQ(use.most_hits, most);
  for (const int64_t rows : use.histogram) rows_by_histogram += rows;
  EXPECT_EQ(rows_by_histogram, use.distinct_rows);
  const auto n = static_cast<double>(bigrams.size());
  EXPECT_TRUE(std::abs(use.expected_rows - 101 * (1 - std::pow(100.0 / 101, n))) <= 1e-9);
  EXPECT_TRUE(std::abs(use.expected_sharing - n * (1 - std::pow(100.0 / 101, n - 1))) <= 1e-9);
  EXPECT_EQ(statistics->tables[1].order, 3);
  EXPECT_TRUE(nlohmann::json::accept(statistics->ToJson()));
  EXPECT_THAT(statistics->ToText(), ::testing::HasSubstr("parameters a token"));

  OT_EXPECT_ERROR(MeasureTables(loaded, 11), "--steps is 11");
  OT_EXPECT_ERROR(MeasureTables(TinyConfig(directory.path(), "run").value(), 1), "ngram_embedding");
}

TEST(BenchStepTest, StartsWithTablesOfTheAgeAskedFor) {
  const TemporaryDirectory directory;
  std::vector<std::string> overrides = MethodOverrides();
  overrides.push_back("train.steps=40");
  const LoadedConfig loaded = TinyConfig(directory.path(), "run", overrides).value();
  const Config& config = loaded.config;
  Memory memory(Memory::Mode::kReal);
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  train.Commit();
  train.Initialize();
  const BatchSource source(config, IdDistribution::kZipf, 3);
  AgeTables(source, 20, &train);
  // The last step that touches a row of the first table, by hand.
  std::map<uint32_t, uint32_t> last;
  Batch batch;
  for (int64_t step = 0; step < 20; ++step) {
    source.Fill(step, &batch);
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      const uint32_t before = i % 16 == 0 ? 0 : batch.tokens[i - 1];
      last[(batch.tokens[i] + 64 * before) % 101] = static_cast<uint32_t>(step + 1);
    }
  }
  const TableState& table = train.model().ngram_parameters()[0].table->table;
  const auto* found = table.last.data<uint32_t>();
  const auto* m = table.m.data<float>();
  for (uint32_t row = 0; row < 101; ++row) {
    const auto it = last.find(row);
    EXPECT_EQ(found[row], it == last.end() ? 0u : it->second) << row;
    EXPECT_EQ(m[row * 6] != 0, it != last.end()) << row;
  }

  BenchStepOptions options;
  options.ids = IdDistribution::kZipf;
  options.table_age = 20;
  options.warmup = 1;
  options.repetitions = 3;
  const absl::StatusOr<BenchStepResult> result = BenchStep(loaded, options, testing::Alone());
  OT_ASSERT_OK(result);
  EXPECT_EQ(result->first_step, 20);
  EXPECT_EQ(result->candidates, 32);  // steps 20 to 31 of 40
  EXPECT_EQ(result->stage, 1);
  const auto json = nlohmann::json::parse(result->ToJson());
  EXPECT_EQ(json.at("ids"), "zipf");
  EXPECT_EQ(json.at("candidates"), 32);
  EXPECT_EQ(json.at("overflow_share"), 0.0);
  // Too short a run is lengthened so that the benchmark stays in the first stage.
  options.table_age = 100;
  const absl::StatusOr<BenchStepResult> late = BenchStep(loaded, options, testing::Alone());
  OT_ASSERT_OK(late);
  EXPECT_EQ(late->candidates, 24);
  EXPECT_EQ(late->stage, 0);
}

// Low ids come about as often as 1 / (id + 1).
TEST(BenchStepTest, ZipfIds) {
  const TemporaryDirectory directory;
  const Config config =
      TinyConfig(directory.path(), "run", {"train.batch_sequences=300", "data.sequence_length=64"})
          .value()
          .config;
  Batch batch, again, other;
  const BatchSource source(config, IdDistribution::kZipf, 1);
  source.Fill(5, &batch);
  source.Fill(5, &again);
  source.Fill(6, &other);
  EXPECT_EQ(batch.tokens, again.tokens);
  EXPECT_NE(batch.tokens, other.tokens);
  std::vector<int64_t> count(64, 0);
  for (const uint32_t id : batch.tokens) ++count.at(id);
  double harmonic = 0;
  for (int i = 1; i <= 64; ++i) harmonic += 1.0 / i;
  const auto n = static_cast<double>(batch.tokens.size());
  for (const size_t id : {0, 1, 9, 63}) {
    const double expected = n / harmonic / static_cast<double>(id + 1);
    // Five standard deviations of a count.
    EXPECT_TRUE(std::abs(static_cast<double>(count[id]) - expected) <= 5 * std::sqrt(expected))
        << id;
  }
}

}  // namespace
}  // namespace overtok

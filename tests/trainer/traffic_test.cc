// What the plan says that a step sends is what the communicators count, to the byte.
#include "trainer/traffic.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <array>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

// A vocabulary of 101 in blocks of 64: with four tensor ranks two have no rows.
Config ConfigOf(const std::vector<std::string>& overrides) {
  const char* yaml =
      "model: {vocab_size: 101, hidden_size: 48, intermediate_size: 56, num_hidden_layers: 2, "
      "num_attention_heads: 4, num_key_value_heads: 1, head_dim: 8}\n"
      "optimizer: {lr: 0.02, adam_lr: 0.008}\n"
      "data: {sequence_length: 16}\n"
      "train: {steps: 10, batch_sequences: 8, micro_batch_sequences: 1}\n"
      "checkpoint: {directory: none}\n";
  const absl::StatusOr<LoadedConfig> loaded = LoadConfigText(yaml, "test.yaml", overrides);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? loaded->config : Config();
}

Batch RandomBatch(const Config& config) {
  Batch batch;
  batch.Resize(config.train.batch_sequences, config.data.sequence_length);
  std::mt19937 generator(7);
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    batch.tokens[i] = generator() % static_cast<uint32_t>(config.model.vocab_size);
    batch.segments[i] = 0;
    batch.loss_weight[i] = i % 16 == 15 ? 0.0F : 1.0F;
  }
  return batch;
}

TrafficByKind Counted(const Mesh& mesh) {
  TrafficByKind sent{};
  for (const Communicator* group : {&mesh.world(), &mesh.data(), &mesh.tensor()}) {
    for (size_t kind = 0; kind < sent.size(); ++kind) sent[kind] += group->bytes_sent()[kind];
  }
  return sent;
}

// Rows that each rank asks each part for, by table: filled by the ranks themselves, read when all
// have.
class AskedRows {
 public:
  void Add(const ParameterSet& parameters, int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    size_t number = 0;
    for (const Parameter& parameter : parameters.all()) {
      if (!parameter.is_table()) continue;
      if (tables_.size() <= number) tables_.emplace_back();
      const auto* rows = parameter.touched.rows.data<uint32_t>();
      for (int64_t i = 0; i < parameter.touched.count; ++i) {
        const int64_t part = PartOf(parameter.sharding, parameter.spec.shape[0], rows[i]);
        ++tables_[number][static_cast<size_t>(rank)][static_cast<size_t>(part)];
      }
      ++number;
    }
  }
  std::vector<TableCounts> CountsOf(int rank) const {
    std::vector<TableCounts> counts;
    for (const auto& asked : tables_) {
      TableCounts& table = counts.emplace_back();
      for (size_t other = 0; other < asked.size(); ++other) {
        if (static_cast<int>(other) == rank) continue;
        table.asked += asked[static_cast<size_t>(rank)][other];
        table.served += asked[other][static_cast<size_t>(rank)];
      }
    }
    return counts;
  }

 private:
  std::mutex mutex_;
  std::vector<std::array<std::array<int64_t, 8>, 8>> tables_;
};

void CompareStep(const Config& config, int ranks, int tensor) {
  const Batch batch = RandomBatch(config);
  AskedRows asked;
  testing::RunOnRanks(ranks, [&](Communicator& world) {
    omp_set_num_threads(1);
    const Mesh mesh(&world, tensor, config.parallel.vocabulary_map);
    Memory memory(Memory::Mode::kReal);
    TrainStep train(config, &mesh, &memory);
    train.Commit();
    train.Initialize();
    const TrafficByKind before = Counted(mesh);
    const absl::StatusOr<StepResult> result = train.Run(batch, 0);
    ASSERT_TRUE(result.ok()) << result.status().message();
    TrafficByKind sent = Counted(mesh);
    for (size_t kind = 0; kind < sent.size(); ++kind) sent[kind] -= before[kind];
    asked.Add(train.parameters(), world.rank());
    world.Barrier();

    // The plan of this rank, from a model of no bytes.
    Memory dry(Memory::Mode::kDry);
    const Mesh planned(mesh.layout());
    TrainStep plan(config, &planned, &dry);
    const TrafficByKind expected =
        TrafficOfRank(config, plan.parameters(), AssignPieces(plan.parameters(), planned.layout()),
                      planned.layout(), asked.CountsOf(world.rank()));
    for (int kind = 0; kind < kTrafficKinds; ++kind) {
      EXPECT_EQ(sent[static_cast<size_t>(kind)], expected[static_cast<size_t>(kind)])
          << NameOf(static_cast<Traffic>(kind)) << " of rank " << world.rank();
    }
  });
}

struct Arm {
  const char* name;
  std::vector<std::string> overrides;
};

const std::vector<Arm>& Arms() {
  static const std::vector<Arm>* arms = new std::vector<Arm>{
      {"baseline", {}},
      {"bf16", {"train.precision=bf16"}},
      {"sampled", {"loss.sampled_softmax.stages=[{until: 1, candidates: 48}]"}},
      {"tied", {"model.tie_word_embeddings=true"}},
      {"recompute", {"train.recompute=block", "model.hybrid_norm=true"}},
      {"ot_h_ss",
       {"model.ngram_embedding={rows: 300, splits: 2, width: 12}", "model.second_token_head={}",
        "loss.sampled_softmax.stages=[{until: 1, candidates: 48}]"}},
      {"ot_2",
       {"model.ngram_embedding={rows: 300, splits: 1, width: 12}",
        "model.ngram_head={orders: [2, 3], rows: 200, width: 20}",
        "optimizer.tables.storage=bf16"}}};
  return *arms;
}

class TrafficTest : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(TrafficTest, PlannedBytesAreCounted) {
  const auto [data, tensor] = GetParam();
  for (const Arm& arm : Arms()) {
    SCOPED_TRACE(absl::StrCat(arm.name, " ", data, " x ", tensor));
    Config config = ConfigOf(arm.overrides);
    config.parallel.tensor = tensor;
    CompareStep(config, data * tensor, tensor);
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrafficTest,
                         ::testing::Values(std::pair{1, 1}, std::pair{2, 1}, std::pair{1, 2},
                                           std::pair{2, 2}, std::pair{4, 1}, std::pair{1, 4}));

TEST(TrafficOfTablesTest, ExpectationIsNearTheRowsThatRandomIdsName) {
  const Config config = ConfigOf({"model.ngram_embedding={rows: 300, splits: 1, width: 12}",
                                  "model.ngram_head={orders: [2], rows: 200, width: 20}"});
  const Batch batch = RandomBatch(config);
  AskedRows asked;
  testing::RunOnRanks(2, [&](Communicator& world) {
    omp_set_num_threads(1);
    const Mesh mesh(&world, 1);
    Memory memory(Memory::Mode::kReal);
    TrainStep train(config, &mesh, &memory);
    train.Commit();
    train.Initialize();
    ASSERT_TRUE(train.Run(batch, 0).ok());
    asked.Add(train.parameters(), world.rank());
    world.Barrier();
    const std::vector<TableCounts> counts = asked.CountsOf(world.rank());
    const std::vector<TableCounts> expected =
        ExpectedTableCounts(config, train.parameters(), mesh.layout());
    ASSERT_EQ(counts.size(), expected.size());
    // Some 50 rows of 64 draws, half of them of the other rank: the spread is a few rows, and parts
    // of 300 rows in blocks of 64 are uneven by a fifth.
    for (size_t t = 0; t < counts.size(); ++t) {
      const auto rows = static_cast<double>(counts[t].asked + counts[t].served);
      EXPECT_TRUE(std::abs(rows / 2 - static_cast<double>(expected[t].asked)) <= 0.35 * rows / 2)
          << counts[t].asked << " " << counts[t].served << " " << expected[t].asked;
    }
  });
}

}  // namespace
}  // namespace overtok

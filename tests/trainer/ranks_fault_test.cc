// What stops several ranks, or must not: a value that is not a number on one of them, a batch
// without targets, rows of a table that collect on one rank. All stop with the same error, and
// nothing has changed on any.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "core/comm/agreement.h"
#include "core/rng.h"
#include "tests/support/thread_ranks.h"
#include "tests/trainer/ranks_run.h"
#include "trainer/layout.h"

namespace overtok {
namespace {

using testing::Differing;
using ::testing::HasSubstr;
using testing::OtH;
using testing::RanksBatch;
using testing::RanksConfig;
using testing::RanksResult;
using testing::RanksRun;
using testing::Sampled;
using testing::TrainOnRanks;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Every byte that a rank holds of values and optimizer state.
std::string Held(TrainStep& train) {
  std::string bytes;
  for (const auto& list :
       {train.parameters().values(), train.optimizer().masters(), train.optimizer().state()}) {
    for (const ShardedTensor& part : list) {
      bytes.append(static_cast<const char*>(part.tensor.raw()),
                   static_cast<size_t>(part.tensor.bytes()));
    }
  }
  return bytes;
}

// A run whose first step fails: with which error, and on how many ranks a byte changed.
struct Stopped {
  std::string error;
  int changed = 0;
};
Stopped RunToTheError(const Config& config, RanksRun run) {
  const auto ranks = static_cast<size_t>(run.data * run.tensor);
  std::vector<std::string> before(ranks), after(ranks);
  const auto at = [](TrainStep& train) { return static_cast<size_t>(train.mesh().world().rank()); };
  run.prepare = [&, poison = run.prepare](TrainStep& train) {
    if (poison) poison(train);
    before[at(train)] = Held(train);
  };
  run.finish = [&](TrainStep& train) { after[at(train)] = Held(train); };
  const RanksResult result = TrainOnRanks(config, run);
  EXPECT_EQ(result.results_that_differ, 0);
  EXPECT_TRUE(result.steps.empty());
  Stopped stopped;
  stopped.error = result.error;
  for (size_t r = 0; r < ranks; ++r) stopped.changed += before[r] != after[r];
  return stopped;
}

// nanochat and others trained on after NaN; with ranks, one that skips alone lets replicas drift.
TEST(NotANumber, OnOneRankStopsAllBeforeAnyUpdate) {
  std::vector<std::string> sampled = OtH();
  sampled.push_back(Sampled(60, 2));
  for (const auto& [data, tensor] : std::vector<std::pair<int, int>>{{4, 1}, {2, 2}, {1, 4}}) {
    for (int rank = 0; rank < 4; ++rank) {
      for (const char* name : {"layers.1.mlp.up_proj.weight", "final_norm.weight"}) {
        SCOPED_TRACE(::testing::PrintToString(std::tuple(data, tensor, rank, name)));
        RanksRun run = {.data = data, .tensor = tensor};
        run.prepare = [&](TrainStep& train) {
          if (train.mesh().world().rank() != rank) return;
          train.parameters().Find(name)->value.data<float>()[1] = kNaN;
        };
        // Window 1 has no target: the rank that has it alone differentiates nothing.
        if (data == 4 && rank == 1) continue;
        const Stopped stopped = RunToTheError(RanksConfig(rank % 2 == 0 ? sampled : OtH()), run);
        EXPECT_THAT(stopped.error, HasSubstr("step 0: the loss ("));
        EXPECT_THAT(stopped.error, HasSubstr("is not finite. Nothing was updated."));
        EXPECT_EQ(stopped.changed, 0);
      }
    }
  }
}

// Only the rank whose window holds the id meets the number; its owner is another rank.
TEST(NotANumber, InOneRanksMicroBatchOfALaterStep) {
  constexpr uint32_t kRare = 100;
  const Config config = RanksConfig();
  for (const auto& [data, tensor] : std::vector<std::pair<int, int>>{{4, 1}, {2, 2}}) {
    RanksRun run = {.data = data, .tensor = tensor, .steps = 5};
    run.batch = [&](const Config& of, int64_t step) {
      Batch batch = RanksBatch(of, step);
      for (uint32_t& id : batch.tokens) id = id == kRare ? 0 : id;
      if (step == 3) batch.tokens[3 * static_cast<size_t>(of.data.sequence_length)] = kRare;
      return batch;
    };
    run.prepare = [&](TrainStep& train) {
      const Parameter& embedding = *train.parameters().Find("embed.weight");
      const int64_t place = PlaceOf(embedding.sharding, embedding.spec.shape[0], kRare);
      if (place < 0) return;
      embedding.value.Rows(place, 1).data<float>()[0] = kNaN;
    };
    const RanksResult result = TrainOnRanks(config, run);
    EXPECT_EQ(result.results_that_differ, 0);
    EXPECT_EQ(result.copies_that_differ, 0);
    EXPECT_EQ(result.steps.size(), 3U);
    EXPECT_THAT(result.error, HasSubstr("step 3: the loss ("));
    // The same run, not continued.
    run.steps = 3;
    const RanksResult shorter = TrainOnRanks(config, run);
    EXPECT_EQ(shorter.error, "");
    EXPECT_EQ(Differing(result.values, shorter.values), "");
    EXPECT_EQ(Differing(result.state, shorter.state), "");
  }
}

// pytorch#70348 and five more: no target at all gave NaN or a division by zero.
TEST(NoTargets, InTheWholeBatchGiveZeroGradientsOnAllRanks) {
  std::vector<std::string> sampled = OtH();
  sampled.push_back(Sampled(60, 4));
  for (const std::vector<std::string>& overrides : {OtH(), sampled}) {
    const Config config = RanksConfig(overrides);
    const auto run_on = [&](int data, int tensor) {
      RanksRun run = {.data = data, .tensor = tensor, .steps = 2};
      run.batch = [](const Config& of, int64_t step) {
        Batch batch = RanksBatch(of, step);
        std::fill(batch.loss_weight.begin(), batch.loss_weight.end(), 0.0F);
        batch.weight_sum = 0;
        return batch;
      };
      return TrainOnRanks(config, run);
    };
    const RanksResult alone = run_on(1, 1);
    ASSERT_EQ(alone.error, "");
    for (const auto& [data, tensor] : std::vector<std::pair<int, int>>{{4, 1}, {2, 2}, {1, 4}}) {
      const RanksResult found = run_on(data, tensor);
      ASSERT_EQ(found.error, "");
      EXPECT_EQ(found.results_that_differ, 0);
      EXPECT_EQ(found.copies_that_differ, 0);
      for (const StepResult& step : found.steps) {
        EXPECT_EQ(step.loss, 0);
        EXPECT_EQ(step.total_norm, 0);
        EXPECT_EQ(step.weight_sum, 0);
      }
      for (const auto& [name, gradient] : found.gradients) {
        for (const double g : gradient.values()) ASSERT_EQ(g, 0) << name;
      }
      const std::string differing = Differing(found.values, alone.values);
      EXPECT_TRUE(tensor > 1 || differing.empty()) << differing;
    }
  }
}

// 2-grams that all have rows of one rank's part: it has room for half more than an even spread and
// 16,384 rows. Every rank sees it and stops with the same words.
TEST(RowsOfOnePart, AreAnErrorOnAllRanks) {
  const Config config = RanksConfig({"model.vocab_size=1001",
                                     "model.ngram_embedding={orders: [2], rows: 200000, width: 4}",
                                     "data.sequence_length=2048", "train.batch_sequences=16"});
  RanksRun run = {.data = 4};
  run.batch = [](const Config& of, int64_t /*step*/) {
    Batch batch;
    const int64_t length = of.data.sequence_length;
    batch.Resize(of.train.batch_sequences, length);
    const Sharding sharding = {Split::kScattered, 4, 0, 1};
    uint64_t draws = 0;
    for (size_t i = 0; i < batch.tokens.size(); ++i) {
      const uint32_t before = i % static_cast<size_t>(length) == 0 ? 0 : batch.tokens[i - 1];
      uint32_t id = 0;
      do {
        id = Philox(3, draws++, 0)[0] % 1001;
      } while (PartOf(sharding, 200000, (id + int64_t{1001} * before) % 200000) != 2);
      batch.tokens[i] = id;
      batch.segments[i] = 0;
      batch.loss_weight[i] = 1;
    }
    batch.weight_sum = static_cast<double>(batch.tokens.size());
    return batch;
  };
  const Stopped stopped = RunToTheError(config, run);
  EXPECT_THAT(stopped.error, HasSubstr("ngram.0.table.weight: "));
  EXPECT_THAT(stopped.error, HasSubstr(" rows are asked of rank 2's part in one step, and it has "
                                       "room for 28672"));
  EXPECT_EQ(stopped.changed, 0);
}

// One key is told, not the whole configuration.
TEST(Configurations, ThatDifferAreAnErrorNamingTheKeys) {
  const auto check = [](const std::vector<std::string>& of_rank_2, const std::string& expected) {
    testing::RunOnRanks(3, [&](Communicator& world) {
      const Config config = RanksConfig(world.rank() == 2 ? of_rank_2 : std::vector<std::string>());
      const absl::Status status = CheckSameConfig(world, config);
      EXPECT_EQ(std::string(status.message()), expected);
      EXPECT_EQ(IsAgreed(status), !expected.empty());
    });
  };
  const std::string start = "rank 2: the configuration is not the same on all ranks: ";
  const std::string end = "; start all ranks with the same files and overrides";
  check({}, "");
  check({"train.seed=3"}, start + "train.seed is 3, and 0 on rank 0" + end);
  check({"optimizer.lr=0.03", "train.seed=3"},
        start + "optimizer.lr is 0.03, and 0.02 on rank 0; train.seed is 3, and 0 on rank 0" + end);
  check({"model.second_token_head={}"},
        start + "model.second_token_head.weight is 0.1, and null on rank 0" + end);
}

}  // namespace
}  // namespace overtok

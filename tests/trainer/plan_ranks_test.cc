// The plan of many ranks: memory and traffic are those of ranks that run, the prediction is the
// arithmetic that docs/planning.md states.
#include "trainer/plan_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/thread_ranks.h"
#include "trainer/config/derived.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

LoadedConfig Loaded(const std::vector<std::string>& overrides = {}) {
  const char* yaml =
      "model: {vocab_size: 200, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, "
      "num_attention_heads: 4, num_key_value_heads: 2, head_dim: 8}\n"
      "optimizer: {lr: 0.02, adam_lr: 0.008}\n"
      "data: {sequence_length: 16}\n"
      "train: {steps: 10, batch_sequences: 8, micro_batch_sequences: 2}\n"
      "checkpoint: {directory: none}\n";
  const absl::StatusOr<LoadedConfig> loaded = LoadConfigText(yaml, "test.yaml", overrides);
  EXPECT_TRUE(loaded.ok()) << loaded.status().message();
  return loaded.ok() ? *loaded : LoadedConfig();
}

// Products take all the time there is.
Hardware ProductsOnly() {
  Hardware hardware;
  hardware.matmul = {1e9, 2e9};
  hardware.attention = {1e9, 2e9};
  hardware.memory_bandwidth = 1e30;
  hardware.within = {1e30, 0};
  hardware.between = {1e30, 0};
  hardware.devices = 8;
  return hardware;
}

TEST(PlanRanksTest, MemoryIsWhatEachRankTakes) {
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);  // scratch is for the threads of a rank
  for (const char* tensor : {"parallel.tensor=1", "parallel.tensor=2"}) {
    const LoadedConfig loaded = Loaded({tensor});
    const absl::StatusOr<RanksPlan> plan = PlanRanks(loaded, {.ranks = 4});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_EQ(plan->ranks.size(), 4u);
    testing::RunOnRanks(4, [&](Communicator& world) {
      omp_set_num_threads(1);
      const Mesh mesh(&world, static_cast<int>(loaded.config.parallel.tensor));
      Memory memory(Memory::Mode::kReal);
      TrainStep train(loaded.config, &mesh, &memory);
      train.Commit();
      const MemoryPlan& planned = plan->ranks[static_cast<size_t>(world.rank())].memory;
      for (int p = 0; p < kPurposes; ++p) {
        EXPECT_EQ(planned.by_purpose[static_cast<size_t>(p)], memory.bytes(static_cast<Purpose>(p)))
            << NameOf(static_cast<Purpose>(p)) << " of rank " << world.rank();
      }
      EXPECT_LT(planned.program, planned.host);
    });
    double node = 0;
    int64_t checkpoint = 0;
    for (const PlannedRankCosts& rank : plan->ranks) {
      node += static_cast<double>(rank.memory.total());
      checkpoint += rank.memory.checkpoint;
      EXPECT_LE(rank.memory.total(), plan->ranks[plan->largest].memory.total());
      EXPECT_LE(rank.sent_in_all(), plan->ranks[plan->busiest].sent_in_all());
    }
    EXPECT_EQ(plan->node_memory, node);
    EXPECT_EQ(plan->checkpoint, checkpoint);
  }
  omp_set_num_threads(threads);
}

TEST(PlanRanksTest, ProductsAreDividedAndOrthogonalisedOnce) {
  const LoadedConfig loaded = Loaded();
  const double tokens = 8 * 16;
  const double flops = ActualForwardFlops(loaded.config).training() * tokens;
  for (const int ranks : {1, 2, 4}) {
    const auto plan = PlanRanks(loaded, {.ranks = ranks, .hardware = ProductsOnly()});
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    ASSERT_EQ(plan->stages.size(), 1u);
    const StepPrediction& step = plan->stages[0].step;
    double model = 0, newton_schulz = 0;
    for (const PredictedPart& part : step.computing)
      (part.name.rfind("Newton", 0) == 0 ? newton_schulz : model) += part.flops;
    EXPECT_NEAR(model, flops / ranks, 1e-6 * flops);
    EXPECT_TRUE(std::abs(step.seconds() - (model + newton_schulz) / 1e9) <= 1e-9);
    EXPECT_EQ(step.tokens, tokens);
    // 5 steps of n^2 (2 m + n) multiplications for every matrix [m, n], n the smaller side: per
    // block q [32, 32], k and v [16, 32], o [32, 32], gate, up [48, 32] and down [32, 48].
    const auto cost = [](double n, double m) { return 2.0 * 5 * n * n * (2 * m + n); };
    const double all = 2 * (2 * cost(32, 32) + 2 * cost(16, 32) + 3 * cost(32, 48));
    EXPECT_GE(newton_schulz, all / ranks * 0.999);
    EXPECT_LE(newton_schulz, all / ranks + cost(32, 48));
  }
}

TEST(PlanRanksTest, ExchangesTakeBytesAndLatencyAndHideAsFarAsTheyMay) {
  const LoadedConfig loaded = Loaded({"parallel.tensor=2"});
  Hardware hardware = ProductsOnly();
  hardware.matmul = hardware.attention = {1e30, 1e30};
  hardware.within = {1e6, 0};
  const auto of = [](const StepPrediction& step, const std::string& name) {
    for (const PredictedPart& part : step.exchanges) {
      if (part.name == name) return part;
    }
    return PredictedPart{};
  };
  const auto plan = PlanRanks(loaded, {.ranks = 2, .hardware = hardware});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  const TrafficByKind& sent = plan->ranks[plan->busiest].sent;
  const StepPrediction& step = plan->stages[0].step;
  const auto bytes = static_cast<double>(sent[static_cast<size_t>(Traffic::kActivations)]);
  EXPECT_TRUE(std::abs(of(step, "activations").seconds - bytes / 1e6) <= 1e-12);
  hardware.within.latency = 1e-3;
  const auto slower = PlanRanks(loaded, {.ranks = 2, .hardware = hardware});
  ASSERT_TRUE(slower.ok());
  // 10 moves in each of two blocks, two at the embedding, two at the head, in four micro-batches.
  EXPECT_TRUE(std::abs(of(slower->stages[0].step, "activations").seconds -
                       (bytes / 1e6 + 24 * 4 * 1e-3)) <= 1e-9);

  // Computing that takes long enough hides the overlapping share of gradients, and no more.
  Hardware slow = ProductsOnly();
  slow.matmul = slow.attention = {1e3, 1e3};
  slow.within = {1e6, 0};
  slow.overlap = 0.75;
  const auto hidden = PlanRanks(Loaded(), {.ranks = 2, .hardware = slow});
  ASSERT_TRUE(hidden.ok());
  const PredictedPart gradients = of(hidden->stages[0].step, "gradients");
  EXPECT_GT(gradients.seconds, 0);
  EXPECT_TRUE(std::abs(gradients.exposed() - 0.25 * gradients.seconds) <= 1e-9);
}

TEST(PlanRanksTest, SeveralNodesUseTheNetwork) {
  const LoadedConfig loaded = Loaded();
  Hardware hardware = ProductsOnly();
  hardware.between = {1e6, 0};
  const auto one = PlanRanks(loaded, {.ranks = 4, .hardware = hardware});
  const auto two = PlanRanks(loaded, {.ranks = 4, .ranks_per_node = 2, .hardware = hardware});
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_EQ(one->ranks_per_node, 4);
  EXPECT_GT(two->stages[0].step.exchange_seconds(), 100 * one->stages[0].step.exchange_seconds());
  hardware.between = {};
  EXPECT_THAT(std::string(PlanRanks(loaded, {.ranks = 4, .ranks_per_node = 2, .hardware = hardware})
                              .status()
                              .message()),
              ::testing::HasSubstr("network.link.bandwidth"));
}

TEST(PlanRanksTest, LayoutsThatDoNotFitAreRefused) {
  const auto message = [](const absl::StatusOr<RanksPlan>& plan) {
    return std::string(plan.status().message());
  };
  EXPECT_THAT(message(PlanRanks(Loaded(), {.ranks = 8})),
              ::testing::HasSubstr("train.batch_sequences"));
  EXPECT_THAT(message(PlanRanks(Loaded({"parallel.tensor=3"}), {.ranks = 4})),
              ::testing::HasSubstr("parallel.tensor"));
  EXPECT_THAT(message(PlanRanks(Loaded(), {.ranks = 4, .ranks_per_node = 3})),
              ::testing::HasSubstr("whole nodes"));
}

TEST(PlanRanksTest, ThousandsOfRanksAndStages) {
  const LoadedConfig loaded =
      Loaded({"train.batch_sequences=1024", "train.micro_batch_sequences=1",
              "loss.sampled_softmax.stages=[{until: 0.5, candidates: 64}]"});
  Hardware hardware = ProductsOnly();
  hardware.memory = 1;
  const auto plan = PlanRanks(loaded, {.ranks = 1024, .hardware = hardware});
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_EQ(plan->ranks.size(), 10u);  // 8 of the first node, the middle one and the last
  EXPECT_EQ(plan->ranks_per_node, 8);
  ASSERT_EQ(plan->stages.size(), 2u);
  EXPECT_LT(plan->stages[0].step.seconds(), plan->stages[1].step.seconds());
  EXPECT_EQ(plan->does_not_fit.size(), 1u);
  const auto json = nlohmann::json::parse(plan->ToJson());
  EXPECT_EQ(json.at("layout").at("data"), 1024);
  EXPECT_EQ(json.at("steps").at(0).at("candidates"), 64);
  const std::string text = plan->ToText();
  for (const char* part : {"1024 x 1", "10 of 1024 ranks", "DOES NOT FIT", "an estimate",
                           "bytes that rank", "64 candidates (steps 0 to 4)"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

}  // namespace
}  // namespace overtok

// The plan's numbers are the run's own.
#include "trainer/plan.h"

#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/comm/mesh.h"
#include "core/io/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/evaluator.h"
#include "trainer/train_loop.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

using testing::MakeTinyCorpus;
using testing::TemporaryDirectory;
using testing::TinyConfig;

// A configuration with every method on.
absl::StatusOr<LoadedConfig> WithMethods(const std::string& root,
                                         const std::string& more = "train.seed=0") {
  const std::string stages = "[{until: 0.4, candidates: 40}, {until: 0.8, candidates: 50}]";
  return TinyConfig(root, "run",
                    {"model.ngram_embedding={rows: 500, splits: 2}", "model.second_token_head={}",
                     "model.ngram_head={orders: [2, 3], rows: 300}",
                     "loss.sampled_softmax.stages=" + stages, "data.passes=4", more});
}

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }
  TemporaryDirectory directory_;
};

TEST_F(PlanTest, MemoryIsWhatARunTakes) {
  for (const bool methods : {false, true}) {
    for (const char* precision : {"f32", "bf16"}) {
      const std::string setting = absl::StrCat("train.precision=", precision);
      const LoadedConfig loaded = methods ? WithMethods(root(), setting).value()
                                          : TinyConfig(root(), "run", {setting}).value();
      const MemoryPlan plan = PlanMemory(loaded.config, 10);
      Memory memory(Memory::Mode::kReal);
      const Mesh mesh;
      TrainStep train(loaded.config, &mesh, &memory);
      const Evaluator evaluator(loaded.config, train.model(), &train.parameters(), &mesh, &memory);
      train.Commit();
      for (int p = 0; p < kPurposes; ++p) {
        EXPECT_EQ(plan.by_purpose[static_cast<size_t>(p)], memory.bytes(static_cast<Purpose>(p)))
            << precision << " " << NameOf(static_cast<Purpose>(p));
      }
      EXPECT_GT(memory.total(), 0);
    }
  }
}

TEST_F(PlanTest, NumbersOfARun) {
  const absl::StatusOr<Plan> plan = MakePlan(TinyConfig(root(), "run").value());
  OT_ASSERT_OK(plan);
  EXPECT_EQ(plan->parameters.muonh(), 15360);
  EXPECT_EQ(plan->tokens, 480);
  EXPECT_EQ(plan->backbone_flops, 6.0 * 15360 * 480);
  EXPECT_EQ(plan->windows, 10);
  EXPECT_EQ(plan->passes, 3.0);
  EXPECT_TRUE(plan->does_not_fit.empty());
  const auto json = nlohmann::json::parse(plan->ToJson());
  EXPECT_EQ(json.at("run").at("tokens"), 480);
  EXPECT_EQ(json.at("parameters").at("total"), plan->parameters.total());
  EXPECT_EQ(json.at("corpus").at("passes"), 3.0);
  EXPECT_EQ(json.at("memory_bytes").at("total"), plan->memory.total());
  EXPECT_NE(plan->ToText().find("15360"), std::string::npos);
  EXPECT_FALSE(PathExists(root() + "/run"));
}

TEST_F(PlanTest, DiskIsWithinThePlan) {
  const LoadedConfig loaded = TinyConfig(root(), "run").value();
  const absl::StatusOr<Plan> plan = MakePlan(loaded);
  OT_ASSERT_OK(plan);
  ASSERT_EQ(Train(loaded, TrainOptions(), testing::Alone()).value(), 0);
  int64_t bytes = 0;
  for (const char* file : {"rank-00000.h5", "tensors.json", "state.json", "complete"}) {
    bytes += FileSize(absl::StrCat(root(), "/run/checkpoints/step-00000010/", file)).value();
  }
  EXPECT_LE(bytes, plan->memory.checkpoint);
  EXPECT_EQ(plan->disk, 3 * plan->memory.checkpoint);
}

TEST_F(PlanTest, ParametersAreTheModelsOwn) {
  const absl::StatusOr<LoadedConfig> loaded = WithMethods(root());
  OT_ASSERT_OK(loaded);
  Memory memory(Memory::Mode::kDry);
  const Mesh mesh;
  TrainStep train(loaded->config, &mesh, &memory);
  std::array<int64_t, kOptimizerGroups> groups{};
  std::map<std::string, int64_t> tables;
  for (const Parameter& parameter : train.parameters().all()) {
    groups[static_cast<size_t>(parameter.spec.group)] += parameter.spec.shape.elements();
    if (parameter.is_table()) tables[parameter.spec.name] = parameter.spec.shape.elements();
  }
  const ParameterCounts counts = CountParameters(loaded->config.model);
  EXPECT_EQ(groups[static_cast<size_t>(OptimizerGroup::kMuonH)], counts.muonh());
  EXPECT_EQ(groups[static_cast<size_t>(OptimizerGroup::kAdamH)], counts.adamh());
  EXPECT_EQ(groups[static_cast<size_t>(OptimizerGroup::kAdam)], counts.adam());
  const std::vector<TableCost> costs = TableCosts(loaded->config);
  EXPECT_EQ(costs.size(), tables.size());
  for (const TableCost& cost : costs) {
    EXPECT_EQ(tables[cost.name + ".table.weight"], cost.parameters()) << cost.name;
  }
}

TEST_F(PlanTest, WhatTheMethodsAdd) {
  const absl::StatusOr<LoadedConfig> loaded = WithMethods(root());
  OT_ASSERT_OK(loaded);
  const absl::StatusOr<Plan> plan = MakePlan(*loaded);
  OT_ASSERT_OK(plan);
  const absl::StatusOr<Plan> bare = MakePlan(TinyConfig(root(), "run").value());
  OT_ASSERT_OK(bare);
  EXPECT_FALSE(bare->methods.has_value());
  EXPECT_EQ(plan->corpus_problem, "");
  ASSERT_TRUE(plan->methods.has_value());
  EXPECT_EQ(plan->methods->parameters, plan->parameters.total() - bare->parameters.total());
  EXPECT_EQ(plan->methods->memory, plan->memory.total() - bare->memory.total());
  EXPECT_EQ(plan->methods->checkpoint, plan->memory.checkpoint - bare->memory.checkpoint);
  EXPECT_GT(plan->methods->parameters, 0);
  EXPECT_EQ(plan->flops.total(), bare->flops.total());
  EXPECT_EQ(plan->causal_flops.total(), bare->causal_flops.total());
  EXPECT_EQ(plan->backbone_flops, bare->backbone_flops);
  EXPECT_EQ(plan->methods->forward_flops, plan->actual_flops.total() - bare->causal_flops.total());
  // Ten steps: four of 40 candidates, four of 50, two of all 64.
  ASSERT_EQ(plan->stages.size(), 3u);
  EXPECT_EQ(plan->stages[1].begin, 4);
  EXPECT_EQ(plan->stages[1].end, 8);
  EXPECT_EQ(plan->stages[1].candidates, 50);
  EXPECT_EQ(plan->stages[2].candidates, 64);
  // Passes of two steps of 48 tokens.
  ASSERT_TRUE(plan->table_parameters_per_token.has_value());
  EXPECT_EQ(*plan->table_parameters_per_token,
            static_cast<double>(plan->parameters.ngram_tables) / 96);
  EXPECT_THAT(plan->warnings, ::testing::Contains(::testing::HasSubstr("parameters a token")));

  const auto json = nlohmann::json::parse(plan->ToJson());
  EXPECT_EQ(json.at("methods_add").at("parameters"), plan->methods->parameters);
  EXPECT_EQ(json.at("stages").at(1).at("candidates"), 50);
  EXPECT_EQ(json.at("tables").at("tables").size(), 6u);
  EXPECT_EQ(json.at("tables").at("tables").at(3).at("rows"), 512);
  EXPECT_EQ(json.at("tables").at("options").at("update: sgd").at("state_bytes"), 0);
  EXPECT_EQ(json.at("warnings").size(), plan->warnings.size());
  const std::string text = plan->ToText();
  for (const char* part : {"the methods add", "ngram.3 (3-grams)", "512 x ", "steps 4 to 7",
                           "gram3 (3-grams)", "storage: bf16", "warning: "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST_F(PlanTest, WithoutACorpusAndTooLarge) {
  const absl::StatusOr<Plan> plan =
      MakePlan(TinyConfig(root(), "run",
                          {"data.train=[" + root() + "/none/*.h5]", "model.vocab_size=2147483648",
                           "model.hidden_size=131072"})
                   .value());
  OT_ASSERT_OK(plan);
  EXPECT_FALSE(plan->windows.has_value());
  EXPECT_NE(plan->corpus_problem.find("none"), std::string::npos);
  ASSERT_FALSE(plan->does_not_fit.empty());
  EXPECT_NE(plan->ToText().find("DOES NOT FIT"), std::string::npos);
  EXPECT_NE(plan->ToText().find("cannot be read"), std::string::npos);
  EXPECT_TRUE(nlohmann::json::parse(plan->ToJson()).at("corpus").contains("problem"));
}

}  // namespace
}  // namespace overtok

// The plan's numbers are the run's own.
#include "trainer/plan.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/comm/communicator.h"
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

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }
  TemporaryDirectory directory_;
};

TEST_F(PlanTest, MemoryIsWhatARunTakes) {
  for (const char* precision : {"f32", "bf16"}) {
    const LoadedConfig loaded =
        TinyConfig(root(), "run", {absl::StrCat("train.precision=", precision)}).value();
    const MemoryPlan plan = PlanMemory(loaded.config, 10);
    Memory memory(Memory::Mode::kReal);
    const std::unique_ptr<Communicator> communicator = OneRank();
    TrainStep train(loaded.config, &memory, communicator.get());
    const Evaluator evaluator(loaded.config, train.model(), &train.parameters(), &memory);
    train.Commit();
    for (int p = 0; p < kPurposes; ++p) {
      EXPECT_EQ(plan.by_purpose[static_cast<size_t>(p)], memory.bytes(static_cast<Purpose>(p)))
          << precision << " " << NameOf(static_cast<Purpose>(p));
    }
    EXPECT_GT(memory.total(), 0);
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
  ASSERT_EQ(Train(loaded, TrainOptions()).value(), 0);
  int64_t bytes = 0;
  for (const char* file : {"model.h5", "optimizer.h5", "state.json", "complete"}) {
    bytes += FileSize(absl::StrCat(root(), "/run/checkpoints/step-00000010/", file)).value();
  }
  EXPECT_LE(bytes, plan->memory.checkpoint);
  EXPECT_EQ(plan->disk, 3 * plan->memory.checkpoint);
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

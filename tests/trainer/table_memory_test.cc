// Where hashed tables lie beside a device: as much of them as fits, the largest in host memory
// first; what a plan says of it is what a run takes.
#include "trainer/table_memory.h"

#include <string>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/config/table_costs.h"
#include "trainer/plan.h"
#include "trainer/plan_ranks.h"
#include "trainer/train_step.h"

namespace overtok {
namespace {

using testing::TemporaryDirectory;
using testing::TinyConfig;

// Input tables of 101 to 104 rows and a larger one of a head.
absl::StatusOr<LoadedConfig> Load(const std::string& root, const std::string& device,
                                  const std::string& memory) {
  return TinyConfig(root, "run",
                    {"model.ngram_embedding={orders: [2], rows: 101, splits: 2, width: 6}",
                     "model.ngram_head={orders: [2], rows: 900, width: 6}",
                     "train.device=" + device, "optimizer.tables.memory=" + memory});
}

class TableMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override { OT_ASSERT_OK(testing::MakeTinyCorpus(root())); }
  const std::string& root() const { return directory_.path(); }
  Config ConfigOf(const std::string& device, const std::string& memory) {
    return Load(root(), device, memory).value().config;
  }
  TemporaryDirectory directory_;
};

int64_t BytesOf(const Config& config, const std::string& name) {
  for (const TableCost& table : TableCosts(config))
    if (table.name == name) return table.value_bytes + table.state_bytes;
  ADD_FAILURE() << name;
  return 0;
}

TEST_F(TableMemoryTest, MovesTheLargestUntilTheRestFits) {
  Config config = ConfigOf("emulated", "auto");
  const std::vector<std::string> order = {"gram2", "ngram.1", "ngram.0"};
  ASSERT_GE(BytesOf(config, order[0]), BytesOf(config, order[1]));
  ASSERT_GT(BytesOf(config, order[1]), BytesOf(config, order[2]));
  const auto needed = [&](const Config& placed) {
    int64_t bytes = 1000;
    for (const TableCost& table : TableCosts(placed))
      if (!table.in_host_memory) bytes += table.value_bytes + table.state_bytes;
    return bytes;
  };
  int64_t bytes = needed(config);
  for (size_t moved = 0; moved <= order.size(); ++moved) {
    const std::vector<std::string> expected(order.begin(),
                                            order.begin() + static_cast<int64_t>(moved));
    PlaceTables(bytes + kDeviceMargin, needed, &config);
    EXPECT_EQ(config.optimizer.tables.moved, expected) << "exactly enough";
    if (moved == order.size()) break;
    PlaceTables(bytes + kDeviceMargin - 1, needed, &config);
    EXPECT_EQ(config.optimizer.tables.moved.size(), moved + 1) << "a byte too few";
    bytes -= BytesOf(config, order[moved]);
  }
  PlaceTables(0, needed, &config);
  EXPECT_EQ(config.optimizer.tables.moved, order) << "nothing fits";
}

TEST_F(TableMemoryTest, LeavesWhatTheConfigurationSays) {
  const auto needed = [](const Config&) { return int64_t{1}; };
  for (const char* memory : {"device", "host"}) {
    Config config = ConfigOf("emulated", memory);
    PlaceTables(0, needed, &config);
    EXPECT_TRUE(config.optimizer.tables.moved.empty()) << memory;
    for (const TableCost& table : TableCosts(config))
      EXPECT_EQ(table.in_host_memory, std::string(memory) == "host");
  }
  Config cpu = ConfigOf("cpu", "auto");
  PlaceTables(0, needed, &cpu);
  EXPECT_TRUE(cpu.optimizer.tables.moved.empty());
  for (const TableCost& table : TableCosts(ConfigOf("cpu", "host")))
    EXPECT_FALSE(table.in_host_memory);
}

// Of a device with room for all but the largest table.
TEST_F(TableMemoryTest, PlansWhatARunTakes) {
  Config config = ConfigOf("emulated", "auto");
  const MemoryPlan all = PlanMemory(config, 10);
  PlaceTablesOfTraining(all.purposes() + kDeviceMargin, Layout(), &config);
  EXPECT_TRUE(config.optimizer.tables.moved.empty());
  PlaceTablesOfTraining(all.purposes() + kDeviceMargin - 1, Layout(), &config);
  ASSERT_EQ(config.optimizer.tables.moved, std::vector<std::string>{"gram2"});
  const MemoryPlan moved = PlanMemory(config, 10);
  EXPECT_LT(moved.purposes(), all.purposes());
  EXPECT_GE(moved.host - all.host, BytesOf(config, "gram2"));

  Memory memory(Memory::Mode::kReal, EmulatedDevice());
  const Mesh mesh;
  TrainStep train(config, &mesh, &memory);
  for (const Parameter& parameter : train.parameters().all()) {
    const bool in_host_memory = parameter.spec.name == "gram2.table.weight";
    EXPECT_EQ(parameter.in_host_memory, in_host_memory) << parameter.spec.name;
    EXPECT_EQ(parameter.copies != nullptr, in_host_memory) << parameter.spec.name;
  }
}

TEST_F(TableMemoryTest, PlansSayWhereTablesLie) {
  const absl::StatusOr<Plan> host = MakePlan(Load(root(), "emulated", "host").value());
  OT_ASSERT_OK(host);
  const std::string text = host->ToText();
  EXPECT_NE(text.find("a step, in host memory"), std::string::npos) << text;
  EXPECT_EQ(text.find("counts as device here"), std::string::npos) << text;
  EXPECT_GT(TotalOf(host->tables).host_bytes, 0);
  // A GPU whose size is not known, and one that is told.
  absl::StatusOr<LoadedConfig> loaded = Load(root(), "cuda", "auto");
  OT_ASSERT_OK(loaded);
  const absl::StatusOr<Plan> unknown = MakePlan(*loaded);
  OT_ASSERT_OK(unknown);
  EXPECT_NE(unknown->ToText().find("counts as device here"), std::string::npos);
  RanksOptions options;
  options.hardware = Hardware();
  options.hardware->matmul = {1e12, 1e12};
  options.hardware->attention = {1e12, 1e12};
  options.hardware->memory_bandwidth = options.hardware->row_bandwidth = 1e12;
  options.hardware->memory = static_cast<double>(unknown->memory.purposes() + kDeviceMargin - 1);
  const absl::StatusOr<RanksPlan> told = PlanRanks(*loaded, options);
  OT_ASSERT_OK(told);
  EXPECT_EQ(told->ToText().find("counts as device here"), std::string::npos);
  EXPECT_NE(told->ToText().find("host memory"), std::string::npos) << told->ToText();
  EXPECT_NE(told->ToText().find("on the device"), std::string::npos) << told->ToText();
  EXPECT_TRUE(told->does_not_fit.empty());
}

}  // namespace
}  // namespace overtok

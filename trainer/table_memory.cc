#include "trainer/table_memory.h"

#include <algorithm>
#include <vector>

#include "trainer/config/table_costs.h"
#include "trainer/open_device.h"
#include "trainer/train_step.h"

namespace overtok {

void PlaceTables(int64_t device_bytes, absl::FunctionRef<int64_t(const Config&)> needed,
                 Config* config) {
  TablesConfig& tables = config->optimizer.tables;
  tables.moved.clear();
  if (TablesArePlaced(*config)) return;
  std::vector<TableCost> costs = TableCosts(*config);
  std::stable_sort(costs.begin(), costs.end(), [](const TableCost& a, const TableCost& b) {
    return a.value_bytes + a.state_bytes > b.value_bytes + b.state_bytes;
  });
  for (const TableCost& table : costs) {
    if (needed(*config) + kDeviceMargin <= device_bytes) return;
    tables.moved.push_back(table.name);
  }
}

bool TablesArePlaced(const Config& config) {
  return config.train.device == DeviceKind::kCpu || TableCosts(config).empty() ||
         config.optimizer.tables.memory != TablesConfig::Memory::kAuto;
}

void PlaceTablesOfStep(int64_t device_bytes, const Mesh& mesh, Config* config) {
  const auto needed = [&](const Config& placed) {
    Memory memory(Memory::Mode::kDry, PlannedDevice(placed.train.device));
    TrainStep train(placed, &mesh, &memory);
    train.Commit();
    return memory.total();
  };
  PlaceTables(device_bytes, needed, config);
}

}  // namespace overtok

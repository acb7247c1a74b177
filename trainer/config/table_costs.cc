#include "trainer/config/table_costs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "model/ngram_rows.h"
#include "optim/table_schedule.h"

namespace overtok {
namespace {

int64_t StateBytesOfRow(const TableStorage& storage, int64_t width) {
  int64_t numbers = storage.first_moment ? width : 0;
  if (storage.second_moment == TableStorage::SecondMoment::kElement) numbers += width;
  if (storage.second_moment == TableStorage::SecondMoment::kRow) numbers += 1;
  if (storage.last_step) numbers += 1;
  return 4 * numbers;
}

TableCost CostOf(std::string name, const NgramTable& table, int64_t width, const Config& config) {
  const TableStorage storage = StorageOf(config.optimizer);
  const int64_t value = width * SizeOf(storage.value);
  const int64_t state = StateBytesOfRow(storage, width);
  const int64_t tokens = config.tokens_per_step();
  TableCost cost;
  cost.name = std::move(name);
  cost.order = table.order;
  cost.rows = static_cast<int64_t>(table.modulus);
  cost.width = width;
  cost.value_bytes = cost.rows * value;
  cost.state_bytes = cost.rows * state;
  cost.touched_rows = std::min(cost.rows, tokens);
  const int64_t visits = storage.last_step ? 2 : 1;
  constexpr int64_t kReadAndWrite = 2;
  cost.step_bytes =
      cost.touched_rows * kReadAndWrite * (visits * (value + state) + 4 * width) + tokens * value;
  const TablesConfig& tables = config.optimizer.tables;
  const bool moved =
      std::find(tables.moved.begin(), tables.moved.end(), cost.name) != tables.moved.end();
  cost.in_host_memory = config.train.device != DeviceKind::kCpu &&
                        (tables.memory == TablesConfig::Memory::kHost ||
                         (tables.memory == TablesConfig::Memory::kAuto && moved));
  return cost;
}

}  // namespace

std::vector<TableCost> TableCosts(const Config& config) {
  const ModelConfig& model = config.model;
  std::vector<TableCost> costs;
  if (model.ngram_embedding) {
    for (const NgramTable& table : InputTables(*model.ngram_embedding, model.vocab_size)) {
      costs.push_back(CostOf(absl::StrCat("ngram.", costs.size()), table,
                             model.ngram_embedding->width, config));
    }
  }
  for (const HeadKind kind : HeadsOf(model)) {
    if (!IsHashed(kind)) continue;
    costs.push_back(CostOf(NameOf(kind), OutputTable(*model.ngram_head, kind),
                           model.ngram_head->width, config));
  }
  return costs;
}

TableTotals TotalOf(const std::vector<TableCost>& tables) {
  TableTotals totals;
  for (const TableCost& table : tables) {
    totals.parameters += table.parameters();
    totals.value_bytes += table.value_bytes;
    totals.state_bytes += table.state_bytes;
    totals.step_bytes += table.step_bytes;
    if (table.in_host_memory) totals.host_bytes += table.value_bytes + table.state_bytes;
  }
  return totals;
}

std::vector<TableOption> TableOptions(const Config& config) {
  using Tables = TablesConfig;
  std::vector<TableOption> options;
  const auto add = [&](const char* setting, auto set) {
    Config other = config;
    Tables& tables = other.optimizer.tables;
    tables = Tables();
    tables.beta1 = config.optimizer.beta1;
    set(tables);
    options.push_back({setting, TotalOf(TableCosts(other))});
  };
  const auto row = [](Tables& tables) { tables.second_moment = Tables::SecondMoment::kRow; };
  const auto bf16 = [](Tables& tables) { tables.storage = DType::kBF16; };
  add("update: exact", [](Tables&) {});
  add("storage: bf16", bf16);
  add("second_moment: row", row);
  add("beta1: 0", [](Tables& tables) { tables.beta1 = 0; });
  add("all three of these", [&](Tables& tables) {
    row(tables);
    bf16(tables);
    tables.beta1 = 0;
  });
  add("update: adagrad", [](Tables& tables) { tables.update = Tables::Update::kAdagrad; });
  add("update: sgd", [](Tables& tables) { tables.update = Tables::Update::kSgd; });
  return options;
}

}  // namespace overtok

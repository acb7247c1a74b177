// Tables in host memory against the same tables on the device: every bit of what steps and
// evaluations read and of what stays, whatever the two streams do in the order that is left to
// them.
#include "core/host_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "core/cuda/emulation/device.h"
#include "core/ops/embedding.h"
#include "model/table_exchange.h"
#include "model/touched_rows.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "optim/table_schedule.h"

namespace overtok {
namespace {

using emulation::Schedule;
using emulation::ScopedSchedule;

constexpr int64_t kSteps = 12, kPositions = 24;
constexpr int64_t kRows[] = {90, 40}, kWidth[] = {12, 7};

OptimizerConfig ConfigOf(DType storage, bool by_row, TablesConfig::Memory memory) {
  OptimizerConfig config;
  config.lr = 0.01;
  config.adam_lr = 0.02;
  config.eps = 1e-12;
  config.tables.storage = storage;
  config.tables.untouched_decay = 0.1;
  if (by_row) config.tables.second_moment = TablesConfig::SecondMoment::kRow;
  config.tables.memory = memory;
  return config;
}

// Rows that tokens of a step read: mostly those of the step before, none of them, the same ones,
// and none at all.
std::vector<uint32_t> IdsOf(int64_t step, int table) {
  std::mt19937 generator(static_cast<uint32_t>(step / 3 * 10 + table));
  std::vector<uint32_t> ids(kPositions);
  const auto rows = static_cast<uint32_t>(kRows[table]);
  for (uint32_t& id : ids) id = generator() % (rows / 2);
  if (step % 3 == 1) {
    for (size_t i = 0; i < ids.size(); i += 2) ids[i] = (ids[i] + 7) % rows;
  }
  if (step % 3 == 2) {
    for (uint32_t& id : ids) id += rows / 2;
  }
  if (step == 7 || (step == 9 && table == 1)) std::fill(ids.begin(), ids.end(), kNoRow);
  return ids;
}

// Two tables of a run on the emulated device.
class TwoTables {
 public:
  explicit TwoTables(const OptimizerConfig& config)
      : config_(config),
        memory_(Memory::Mode::kReal, EmulatedDevice()),
        context_(EmulatedDevice()),
        world_(OneRank()),
        mesh_(world_.get(), 1),
        parameters_(&memory_, DType::kF32, true, StorageOf(config)),
        builder_(kPositions) {
    for (size_t t = 0; t < 2; ++t) {
      Table& table = tables_[t];
      table.parameter = &parameters_.Add({.name = t == 0 ? "a" : "b",
                                          .shape = {kRows[t], kWidth[t]},
                                          .placement = Placement::kTableRows,
                                          .group = OptimizerGroup::kAdam,
                                          .initializer = Initializer::kNormal,
                                          .scale = 0.5,
                                          .update = UpdateKind::kTable,
                                          .touched_capacity = kPositions},
                                         false);
      const auto exchange = [&](bool training) {
        return std::make_unique<TableExchange>(table.parameter, &mesh_, kPositions, training,
                                               &memory_);
      };
      table.training = exchange(true);
      table.evaluation = exchange(false);
      const auto input = [&](const char* name) {
        return memory_.TakeInput(Purpose::kBatches, name, DType::kU32, {kPositions});
      };
      table.ids = input("ids");
      table.slots = input("slots");
      table.read = memory_.Take(Purpose::kActivations, "read", DType::kF32,
                                {2 * kSteps, kPositions, kWidth[t]});
    }
    optimizer_ = std::make_unique<Optimizer>(config, kSteps, 3, &parameters_,
                                             std::vector<Parameter*>(), &mesh_, &memory_);
    memory_.Commit(&context_);
    parameters_.Initialize(5);
    optimizer_->Resume(context_);
  }

  // Hands everything to the device; waits for nothing.
  void Step(int64_t step) {
    parameters_.StartStep();
    for (size_t t = 0; t < 2; ++t) {
      Table& table = tables_[t];
      const std::vector<uint32_t> ids = IdsOf(step, static_cast<int>(t));
      std::copy(ids.begin(), ids.end(), table.ids.data<uint32_t>());
      builder_.Fill(ids, &table.parameter->touched, table.slots.data<uint32_t>());
      ASSERT_TRUE(table.training->Name(table.parameter->touched.used(), table.slots).ok());
    }
    optimizer_->BeginStep(step);
    context_.SendInputs(InputGroup::kSchedule);
    context_.SendInputs(InputGroup::kStep);
    optimizer_->CatchUp(context_);
    for (Table& table : tables_) {
      table.training->Fetch(context_, nullptr);
      table.training->Read(context_, table.ids, table.slots, nullptr, ReadOf(table, 2 * step));
      std::mt19937 generator(static_cast<uint32_t>(step));
      const Tensor gradient = table.parameter->touched.used_gradient();
      std::vector<float> values(static_cast<size_t>(gradient.elements()));
      for (float& x : values) x = static_cast<float>(generator() % 1000) / 1000 - 0.4F;
      context_.Write(values.data(), gradient);
      table.training->ReturnGradients(context_);
    }
    optimizer_->ComputeNorms(context_, step, {});
    optimizer_->Step(context_, step, LrScale(config_.schedule, kSteps, step));
  }

  // The same rows as an evaluation after `step` reads them.
  void Evaluate(int64_t step) {
    TableSchedule& schedule = optimizer_->tables();
    const TableReading reading = {schedule.rule(), schedule.At(step + 1)};
    context_.SendInputs(InputGroup::kSchedule);
    for (Table& table : tables_) {
      ASSERT_TRUE(table.evaluation->Name(Tensor(), Tensor()).ok());
      table.evaluation->Fetch(context_, &reading);
      table.evaluation->Read(context_, table.ids, Tensor(), &reading, ReadOf(table, 2 * step + 1));
    }
  }

  // A pass that begins with fresh values of the first table.
  void Reinitialize(int64_t step) {
    parameters_.ReinitializeTable(*tables_[0].parameter, 5, 1, step);
  }

  // Values and state as a checkpoint holds them.
  std::vector<std::vector<char>> State() {
    parameters_.Settle(context_);
    std::vector<std::vector<char>> all;
    std::vector<ShardedTensor> tensors = parameters_.values();
    for (const ShardedTensor& state : parameters_.table_states()) tensors.push_back(state);
    for (const ShardedTensor& entry : tensors) all.push_back(Bytes(entry.tensor));
    return all;
  }
  void Load(const std::vector<std::vector<char>>& state) {
    parameters_.Forget();
    std::vector<ShardedTensor> tensors = parameters_.values();
    for (const ShardedTensor& of : parameters_.table_states()) tensors.push_back(of);
    for (size_t i = 0; i < tensors.size(); ++i) context_.Write(state[i].data(), tensors[i].tensor);
  }
  std::vector<std::vector<char>> All() {
    std::vector<std::vector<char>> all = State();
    for (const Table& table : tables_) all.push_back(Bytes(table.read));
    return all;
  }
  int64_t host_bytes() const { return memory_.host_bytes(); }
  int64_t bytes() const { return memory_.total(); }

 private:
  struct Table {
    Parameter* parameter = nullptr;
    std::unique_ptr<TableExchange> training, evaluation;
    Tensor ids, slots;
    Tensor read;  // [2 steps, positions, w]: of each step, and of the evaluation behind it
  };
  static Tensor ReadOf(const Table& table, int64_t i) {
    return table.read.Rows(i, 1).Reshape({kPositions, table.read.dim(2)});
  }
  std::vector<char> Bytes(const Tensor& tensor) const {
    std::vector<char> bytes(static_cast<size_t>(tensor.bytes()));
    context_.Read(tensor, bytes.data());
    return bytes;
  }

  OptimizerConfig config_;
  Memory memory_;
  Context context_;
  std::unique_ptr<Communicator> world_;
  Mesh mesh_;
  ParameterSet parameters_;
  Table tables_[2];
  std::unique_ptr<Optimizer> optimizer_;
  RowSlots builder_;
};

std::vector<std::vector<char>> WholeRun(const OptimizerConfig& config, Schedule schedule) {
  const ScopedSchedule scoped(schedule);
  TwoTables run(config);
  for (int64_t step = 0; step < kSteps; ++step) {
    if (step == 6) run.Reinitialize(step);
    run.Step(step);
    // Behind each other, and behind steps of every kind.
    if (step == 2 || step == 8 || step == 9) run.Evaluate(step);
  }
  return run.All();
}

constexpr Schedule kSchedules[] = {Schedule::kInOrder, Schedule::kSideFirst, Schedule::kMainFirst};

TEST(HostTable, HasTheBitsOfATableOnTheDevice) {
  for (const DType storage : {DType::kF32, DType::kBF16}) {
    const bool by_row = storage == DType::kF32;
    const auto expected =
        WholeRun(ConfigOf(storage, by_row, TablesConfig::Memory::kDevice), Schedule::kInOrder);
    for (const Schedule schedule : kSchedules) {
      const auto found = WholeRun(ConfigOf(storage, by_row, TablesConfig::Memory::kHost), schedule);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        EXPECT_TRUE(found[i] == expected[i])
            << NameOf(storage) << ", schedule " << static_cast<int>(schedule) << ", tensor " << i;
      }
    }
  }
}

// As a run that is stopped and continued; and nothing of what was there before stays.
TEST(HostTable, ContinuesFromWhatACheckpointHolds) {
  for (const Schedule schedule : kSchedules) {
    const ScopedSchedule scoped(schedule);
    const OptimizerConfig config = ConfigOf(DType::kBF16, false, TablesConfig::Memory::kHost);
    TwoTables whole(config), parts(config);
    for (int64_t step = 0; step < 4; ++step) whole.Step(step);
    for (int64_t step = 0; step < 2; ++step) parts.Step(step);
    parts.Load(whole.State());
    for (int64_t step = 4; step < 8; ++step) {
      whole.Step(step);
      parts.Step(step);
    }
    EXPECT_TRUE(whole.State() == parts.State()) << static_cast<int>(schedule);
  }
}

// A step that was named and given up.
TEST(HostTable, NamesAgain) {
  Memory memory(Memory::Mode::kReal, EmulatedDevice());
  Context context(EmulatedDevice());
  TableState state;
  state.value = memory.TakeOnHost(Purpose::kParameters, "value", DType::kF32, {5, 2});
  HostTable table("t", state, 3, &memory);
  HostTable* tables[] = {&table};
  memory.Commit(&context);
  const std::vector<float> values = {0, 1, 10, 11, 20, 21, 30, 31, 40, 41};
  context.Write(values.data(), state.value);
  std::vector<uint32_t> first = {0, 1, 2}, second = {1, 4};
  table.Name(Tensor(first.data(), {3}));
  table.Name(Tensor(second.data(), {2}));
  HostTable::BringRows(context, tables);
  std::vector<float> copies(6, -1);
  context.Read(table.copies().value, copies.data());
  EXPECT_EQ(std::vector<float>(copies.begin(), copies.begin() + 4),
            std::vector<float>({10, 11, 40, 41}));
  std::vector<uint32_t> places(2);
  context.Read(table.places(), places.data());
  EXPECT_EQ(places, std::vector<uint32_t>({0, 1}));
  // What the step writes is there for the next one, and in the table once that is settled.
  const std::vector<float> written = {-1, -2, -3, -4};
  context.Write(written.data(), table.copies().value.Rows(0, 2));
  table.Name(Tensor(first.data(), {3}));
  table.Settle(context);
  std::vector<float> all(10);
  context.Read(state.value, all.data());
  EXPECT_EQ(all, std::vector<float>({0, 1, -1, -2, 20, 21, 30, 31, -3, -4}));
  HostTable::BringRows(context, tables);
  context.Read(table.copies().value, copies.data());
  EXPECT_EQ(copies, std::vector<float>({0, 1, -1, -2, 20, 21}));
}

// What is as large as a table is not on the device.
TEST(HostTable, LeavesTheDevicesMemory) {
  const TwoTables device(ConfigOf(DType::kF32, false, TablesConfig::Memory::kDevice)),
      host(ConfigOf(DType::kF32, false, TablesConfig::Memory::kHost));
  int64_t table = 0, copies = 0;
  for (int t = 0; t < 2; ++t) {
    const int64_t row = 4 * (3 * kWidth[t] + 1);
    table += kRows[t] * row;
    // Two sets; lists of rows: five with twins, the places.
    copies += kPositions * (2 * row + 4 * 6);
  }
  EXPECT_EQ(host.bytes(), device.bytes() - table + copies);
  EXPECT_EQ(host.host_bytes(), device.host_bytes() + table + 2 * kPositions * 4 * 6);
}

}  // namespace
}  // namespace overtok

// A divided table against the same table on one rank: values that come, bytes that travel, room and
// what happens without it; ranks that read nothing, the same or everything.
#include "model/table_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/comm/agreement.h"
#include "tests/model/table_exchange_support.h"
#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::Distinct;
using testing::Ids;
using testing::kPatterns;
using testing::kRows;
using testing::kWidth;
using testing::RankTable;
using testing::RunOnRanks;
using testing::SameBits;
using testing::TableSpec;
using testing::TableStorageOf;

struct LayoutCase {
  int ranks, tensor;
};
constexpr LayoutCase kLayouts[] = {{1, 1}, {2, 1}, {2, 2}, {3, 1}, {4, 1}, {4, 2}, {4, 4}};

TEST(TableExchange, FetchesWhatTheTableHolds) {
  for (const DType value : {DType::kF32, DType::kBF16}) {
    for (const auto [ranks, tensor] : kLayouts) {
      RunOnRanks(ranks, [&, value = value, tensor = tensor](Communicator& world) {
        RankTable part(&world, tensor, value, true);
        const std::unique_ptr<Communicator> one = OneRank();
        RankTable whole(one.get(), 1, value, true);
        for (int pattern = 0; pattern < kPatterns; ++pattern) {
          const std::vector<uint32_t> ids = Ids(pattern, world.rank());
          ASSERT_TRUE(part.Name(ids).ok());
          ASSERT_TRUE(whole.Name(ids).ok());
          EXPECT_TRUE(SameBits(part.Read(nullptr), whole.Read(nullptr)))
              << world.size() << " ranks, pattern " << pattern;

          // What ranks read of this part, once each, ascending.
          std::set<uint32_t> expected;
          for (int rank = 0; rank < world.size(); ++rank) {
            for (const uint32_t row : Distinct(Ids(pattern, rank))) {
              const Sharding& sharding = part.table().sharding;
              if (PartOf(sharding, kRows, row) == sharding.part)
                expected.insert(static_cast<uint32_t>(LocalOf(sharding, kRows, row)));
            }
          }
          const Tensor owned = part.table().owned.used();
          ASSERT_EQ(owned.elements(), static_cast<int64_t>(expected.size()));
          EXPECT_TRUE(std::equal(expected.begin(), expected.end(), owned.data<uint32_t>()));
        }
      });
    }
  }
}

// Three silent steps of numbers that differ from step to step.
struct Silent {
  std::vector<std::vector<double>> entries;
  TableReading reading;
  Silent() {
    for (int k = 0; k < 10; ++k) {
      std::vector<double>& values = entries.emplace_back();
      for (int i = 0; i < 4; ++i) values.push_back(1 - 0.01 * k - 0.1 * (3 - i));
    }
    auto next = [&, k = size_t{0}]() mutable { return Tensor(entries[k++].data(), {4}); };
    reading.rule = {TableRule::Kind::kAdam, 0.9, 0.98, 1e-12};
    reading.replay.step = reading.replay.window = reading.replay.window_f32 = 3;
    TableReplay& r = reading.replay;
    for (Tensor* tensor : {&r.moved, &r.moved_eps, &r.moved_eps2, &r.series_from, &r.kept,
                           &r.power1, &r.power2, &r.root_power2, &r.gain, &r.root})
      *tensor = next();
  }
};

TEST(TableExchange, EvaluationReadsRowsOfDifferentStepsAndChangesNothing) {
  for (const DType value : {DType::kF32, DType::kBF16}) {
    for (const auto [ranks, tensor] : kLayouts) {
      RunOnRanks(ranks, [&, value = value, tensor = tensor](Communicator& world) {
        const Silent silent;
        RankTable part(&world, tensor, value, false);
        const std::unique_ptr<Communicator> one = OneRank();
        RankTable whole(one.get(), 1, value, false);
        const Tensor& values = part.table().value;
        const std::string before(static_cast<const char*>(values.raw()),
                                 static_cast<size_t>(values.bytes()));
        for (int pattern = 0; pattern < kPatterns; ++pattern) {
          const std::vector<uint32_t> ids = Ids(pattern, world.rank());
          ASSERT_TRUE(part.Name(ids).ok());
          ASSERT_TRUE(whole.Name(ids).ok());
          EXPECT_TRUE(SameBits(part.Read(&silent.reading), whole.Read(&silent.reading)))
              << world.size() << " ranks, pattern " << pattern;
        }
        EXPECT_EQ(std::memcmp(before.data(), values.raw(), before.size()), 0);
        EXPECT_EQ(part.table().owned.count, 0);
      });
    }
  }
}

TEST(TableExchange, SendsTheBytesThatItsCountsSay) {
  for (const DType value : {DType::kF32, DType::kBF16}) {
    for (const auto [ranks, tensor] : kLayouts) {
      for (const bool training : {true, false}) {
        RunOnRanks(ranks, [&, value = value, tensor = tensor](Communicator& world) {
          const Silent silent;
          RankTable part(&world, tensor, value, training);
          const auto kind = static_cast<size_t>(Traffic::kTables);
          for (int pattern = 0; pattern < kPatterns; ++pattern) {
            const auto before = world.bytes_sent();
            const std::vector<uint32_t> ids = Ids(pattern, world.rank());
            ASSERT_TRUE(part.Name(ids).ok());
            part.Read(training ? nullptr : &silent.reading);
            if (training) part.exchange().ReturnGradients(part.context());
            const TableCounts counts = part.exchange().counts();
            int64_t asked = 0;
            for (const uint32_t row : Distinct(ids))
              asked += PartOf(part.table().sharding, kRows, row) != world.rank();
            EXPECT_EQ(counts.asked, world.size() == 1 ? 0 : asked);
            for (size_t k = 0; k < kTrafficKinds; ++k) {
              EXPECT_EQ(
                  world.bytes_sent()[k] - before[k],
                  k == kind ? TableBytesSent(counts, world.size(), kWidth, value, training) : 0);
            }
            int64_t all[] = {counts.asked, counts.served};
            world.AllReduceSum(all, Traffic::kControl);
            EXPECT_EQ(all[0], all[1]);
          }
        });
      }
    }
  }
}

// A table of `rows` rows of which only the exchange's own buffers exist.
struct PlannedTable {
  Memory nothing{Memory::Mode::kDry}, memory{Memory::Mode::kReal};
  Mesh mesh;
  ParameterSet parameters;
  Parameter* table;
  std::vector<uint32_t> rows;
  PlannedTable(Communicator* world, int64_t table_rows, int64_t capacity)
      : mesh(world, 1),
        parameters(&nothing, DType::kF32, true, TableStorageOf(DType::kF32), mesh.layout()),
        table(&parameters.Add(TableSpec({table_rows, 1}, capacity), false)),
        rows(static_cast<size_t>(capacity)) {
    table->touched.rows = Tensor(rows.data(), {capacity});
  }
  void Touch(const std::vector<uint32_t>& named) {
    std::copy(named.begin(), named.end(), rows.begin());
    table->touched.count = static_cast<int64_t>(named.size());
  }
};

TEST(TableExchange, RowsAboveTwoToThe31ReachTheirOwners) {
  constexpr int64_t kMany = 4'294'967'291;  // below 2^32, not a multiple of a block
  const std::vector<uint32_t> rows = {
      0, 63, 64, 0x7fffffff, 0x80000000, 0x80000040, 3'000'000'007, 4'294'967'231, 4'294'967'290};
  for (const int ranks : {2, 3, 4}) {
    RunOnRanks(ranks, [&](Communicator& world) {
      PlannedTable planned(&world, kMany, 16);
      TableExchange exchange(planned.table, &planned.mesh, 16, true, &planned.memory);
      planned.Touch(rows);
      std::vector<uint32_t> slots = {8, kNoRow, 3};
      ASSERT_TRUE(exchange.Name(planned.table->touched.used(), Tensor(slots.data(), {3})).ok());
      const Sharding& sharding = planned.table->sharding;
      std::vector<uint32_t> expected, found;
      for (const uint32_t row : rows) {
        if (PartOf(sharding, kMany, row) == sharding.part) expected.push_back(row);
      }
      const TouchedRows& owned = planned.table->owned;
      for (int64_t i = 0; i < owned.count; ++i) {
        found.push_back(
            static_cast<uint32_t>(GlobalOf(sharding, kMany, owned.rows.data<uint32_t>()[i])));
      }
      EXPECT_EQ(found, expected);
      EXPECT_EQ(slots[1], kNoRow);
      EXPECT_NE(slots[0], slots[2]);
    });
  }
}

TEST(TableExchange, APartThatIsAskedForTooMuchIsOneErrorOnAllRanks) {
  constexpr int64_t kTableRows = 64'000, kAsked = 16'000;
  std::vector<std::string> messages(3);
  RunOnRanks(3, [&](Communicator& world) {
    PlannedTable planned(&world, kTableRows, kAsked);
    TableExchange exchange(planned.table, &planned.mesh, kAsked, true, &planned.memory);
    std::vector<uint32_t> rows;
    for (uint32_t row = 0; rows.size() < kAsked; ++row) {
      if (PartOf(planned.table->sharding, kTableRows, row) == 1) rows.push_back(row);
    }
    planned.Touch(rows);
    const absl::Status status = exchange.Name(planned.table->touched.used(), Tensor());
    EXPECT_TRUE(IsAgreed(status));
    messages[static_cast<size_t>(world.rank())] = std::string(status.message());
    // The next step can be made.
    planned.Touch({0, 1, 2});
    EXPECT_TRUE(exchange.Name(planned.table->touched.used(), Tensor()).ok());
  });
  EXPECT_EQ(messages[1], messages[0]);
  EXPECT_EQ(messages[2], messages[0]);
  for (const char* part : {"gram", "48000 rows", "rank 1's part", "40384", "fewer ranks"}) {
    EXPECT_NE(messages[0].find(part), std::string::npos) << messages[0];
  }
}

TEST(TableExchange, CapacitiesAreMetByTheirFormula) {
  // Half more than the mean, and 16,384.
  EXPECT_EQ(ServedCapacity(1'000'000, 8, 40'000), 60'000 + 16'384);
  EXPECT_EQ(OwnedCapacity(1'000'000, 8, 40'000), 60'000 + 16'384);
  // What is there, what can be asked for.
  EXPECT_EQ(ServedCapacity(1000, 8, 40'000), 8000);
  EXPECT_EQ(OwnedCapacity(1000, 8, 40'000), 1000);
  EXPECT_EQ(ServedCapacity(1'000'000, 2, 10'000), 20'000);
  EXPECT_EQ(ServedCapacity(0, 4, 10'000), 0);
  EXPECT_EQ(OwnedCapacity(0, 4, 10'000), 0);
}

TEST(TableExchange, ADryMemoryCountsWhatARealOneTakes) {
  for (const bool training : {true, false}) {
    std::vector<int64_t> planned(3), taken(3);
    for (int rank = 0; rank < 3; ++rank) {
      Memory memory(Memory::Mode::kDry);
      const Mesh mesh(Layout::Of(3, rank, 1));
      ParameterSet parameters(&memory, DType::kF32, training, TableStorageOf(DType::kBF16),
                              mesh.layout());
      Parameter& table = parameters.Add(TableSpec({100, 8}, 50), false);
      const TableExchange exchange(&table, &mesh, 50, training, &memory);
      planned[static_cast<size_t>(rank)] = memory.total();
    }
    // 100 rows are two blocks: one of the three ranks has none.
    RunOnRanks(3, [&](Communicator& world) {
      Memory memory(Memory::Mode::kReal);
      const Mesh mesh(&world, 1);
      ParameterSet parameters(&memory, DType::kF32, training, TableStorageOf(DType::kBF16),
                              mesh.layout());
      Parameter& table = parameters.Add(TableSpec({100, 8}, 50), false);
      const TableExchange exchange(&table, &mesh, 50, training, &memory);
      taken[static_cast<size_t>(world.rank())] = memory.total();
    });
    EXPECT_EQ(planned, taken);
  }
}

}  // namespace
}  // namespace overtok

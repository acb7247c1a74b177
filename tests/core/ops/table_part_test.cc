// Rows of a table that is divided, and copies of rows elsewhere, are rounded like those of the
// whole: random bits follow the logical row.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "core/ops/table.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::ScratchContext;

constexpr int64_t kRows = 333, kWidth = 19, kStep = 2;

struct PartTable {
  Buffer value, m, v, gradient, last;
  TableState state;

  PartTable(DType dtype, int64_t rows, const Sharding& sharding, int64_t logical_rows)
      : value(dtype, {rows, kWidth}),
        m(DType::kF32, {rows, kWidth}),
        v(DType::kF32, {rows, kWidth}),
        gradient(DType::kF32, {rows, kWidth}),
        last(DType::kU32, {rows}) {
    state = {.value = value.tensor(),
             .m = m.tensor(),
             .v = v.tensor(),
             .last = last.tensor(),
             .sharding = sharding,
             .logical_rows = logical_rows};
  }
  PartTable(const PartTable&) = delete;
  PartTable& operator=(const PartTable&) = delete;

  // Replays steps 0 and 1, then makes step 2, on all rows.
  void Run() {
    const ScratchContext context(0);
    Buffer all(DType::kU32, {value.shape()[0]});
    for (int64_t i = 0; i < all.size(); ++i) all.Set(i, static_cast<double>(i));
    const Tensor rows = all.tensor();
    const TableRule rule{TableRule::Kind::kAdam, 0.9, 0.98, 1e-12};
    // Numbers of no meaning: what matters is that they move the row.
    Buffer zeros(DType::kF64, {kStep + 1}), kept(DType::kF64, {kStep + 1}, {0.97, 0.98, 1}),
        moved(DType::kF64, {kStep + 1}, {0.03, 0.02, 0});
    const TableReplay replay{.step = kStep,
                             .window = kStep,
                             .window_f32 = kStep,
                             .moved = moved.tensor(),
                             .moved_eps = zeros.tensor(),
                             .moved_eps2 = zeros.tensor(),
                             .series_from = zeros.tensor(),
                             .kept = kept.tensor(),
                             .power1 = kept.tensor(),
                             .power2 = kept.tensor(),
                             .root_power2 = kept.tensor(),
                             .gain = zeros.tensor(),
                             .root = zeros.tensor()};
    TableReplayRows(
        *context, {.state = state, .rule = rule, .replay = replay, .rows = rows, .random_key = 11});
    TableUpdate(*context, {.state = state,
                           .rule = rule,
                           .rows = rows,
                           .gradient = gradient.tensor(),
                           .clip = {},
                           .constants = {.correction1 = 0.5, .correction2 = 0.5},
                           .rate = 0.01,
                           .step = kStep,
                           .random_key = 11});
  }
};

void CopyRow(const Buffer& from, int64_t from_row, Buffer& to, int64_t to_row) {
  const int64_t width = from.size() / from.shape()[0];
  for (int64_t c = 0; c < width; ++c) to.Set(to_row * width + c, from.Get(from_row * width + c));
}

// Values that move, and rows behind by different steps.
void FillTable(PartTable& table) {
  FillNormal(table.value, 1, 1);
  FillNormal(table.m, 2, 0.1);
  FillNormal(table.gradient, 3, 0.1);
  for (int64_t i = 0; i < table.v.size(); ++i)
    table.v.Set(i, 0.01 + 1e-4 * static_cast<double>(i % 50));
  for (int64_t i = 0; i < table.last.size(); ++i)
    table.last.Set(i, static_cast<double>(i % (kStep + 1)));
}
void CopyRows(const PartTable& from, int64_t from_row, PartTable& to, int64_t to_row) {
  CopyRow(from.value, from_row, to.value, to_row);
  CopyRow(from.m, from_row, to.m, to_row);
  CopyRow(from.v, from_row, to.v, to_row);
  CopyRow(from.gradient, from_row, to.gradient, to_row);
  CopyRow(from.last, from_row, to.last, to_row);
}

TEST(TablePart, CopiesOfRowsAreUpdatedLikeTheRows) {
  constexpr int64_t kCopies = 5;
  constexpr int64_t kOf[kCopies] = {0, 7, 64, 65, 70};
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t parts : {1, 3}) {
      const Sharding sharding =
          parts == 1 ? Sharding() : Sharding{.split = Split::kScattered, .parts = parts, .part = 1};
      const int64_t size = SizeOfPart(sharding, kRows);
      PartTable table(dtype, size, sharding, kRows);
      FillTable(table);
      PartTable copies(dtype, kCopies, sharding, kRows);
      Buffer numbers(DType::kU32, {kCopies});
      copies.state.numbers = numbers.tensor();
      for (int64_t i = 0; i < kCopies; ++i) {
        ASSERT_LT(kOf[i], size);
        numbers.Set(i, static_cast<double>(kOf[i]));
        CopyRows(table, kOf[i], copies, i);
      }
      table.Run();
      copies.Run();
      Buffer value(dtype, copies.value.shape()), m(DType::kF32, copies.value.shape()),
          v(DType::kF32, copies.value.shape()), last(DType::kU32, {kCopies});
      for (int64_t i = 0; i < kCopies; ++i) {
        CopyRow(table.value, kOf[i], value, i);
        CopyRow(table.m, kOf[i], m, i);
        CopyRow(table.v, kOf[i], v, i);
        CopyRow(table.last, kOf[i], last, i);
      }
      EXPECT_TRUE(copies.value.SameBits(value)) << NameOf(dtype) << ", " << parts << " parts";
      EXPECT_TRUE(copies.m.SameBits(m) && copies.v.SameBits(v) && copies.last.SameBits(last));
    }
  }
}

TEST(TablePart, IsUpdatedLikeTheSameRowsOfTheWhole) {
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const int64_t parts : {1, 3, 4, 7}) {
      PartTable whole(dtype, kRows, {}, 0);
      FillTable(whole);
      int64_t rows = 0;
      std::vector<std::unique_ptr<PartTable>> tables;
      for (int64_t part = 0; part < parts; ++part) {
        const Sharding sharding{.split = Split::kScattered, .parts = parts, .part = part};
        const int64_t size = SizeOfPart(sharding, kRows);
        rows += size;
        tables.push_back(std::make_unique<PartTable>(dtype, size, sharding, kRows));
        PartTable& table = *tables.back();
        for (int64_t local = 0; local < size; ++local) {
          const int64_t global = GlobalOf(sharding, kRows, local);
          CopyRows(whole, global, table, local);
        }
      }
      ASSERT_EQ(rows, kRows);
      const Buffer before(whole.value);
      whole.Run();
      EXPECT_FALSE(whole.value.SameBits(before));
      for (const auto& table : tables) {
        table->Run();
        Buffer expected(dtype, table->value.shape());
        for (int64_t local = 0; local < expected.shape()[0]; ++local) {
          CopyRow(whole.value, GlobalOf(table->state.sharding, kRows, local), expected, local);
        }
        EXPECT_TRUE(table->value.SameBits(expected))
            << parts << " parts, " << NameOf(dtype) << ", part " << table->state.sharding.part;
      }
    }
  }
}

}  // namespace
}  // namespace overtok

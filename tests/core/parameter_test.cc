#include "core/parameter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/memory.h"

namespace overtok {
namespace {

ParameterSpec TableSpec(int64_t rows, int64_t width, int64_t capacity) {
  ParameterSpec spec = {
      "table", {rows, width}, Placement::kReplicated, OptimizerGroup::kAdam, Initializer::kNormal,
      0.5};
  spec.update = UpdateKind::kTable;
  spec.touched_capacity = capacity;
  return spec;
}

std::vector<float> ValuesOf(const Tensor& value) {
  std::vector<float> out;
  for (int64_t i = 0; i < value.elements(); ++i) {
    out.push_back(value.dtype() == DType::kBF16 ? static_cast<float>(value.data<bf16>()[i])
                                                : value.data<float>()[i]);
  }
  return out;
}

// A table has a gradient for the rows that a step can touch, never one of its size.
TEST(ParameterSet, TablesHaveNoGradientOfTheirSize) {
  Memory memory(Memory::Mode::kDry);
  ParameterSet parameters(&memory, DType::kF32, true);
  const Parameter& table = parameters.Add(TableSpec(1'000'000, 16, 100), false);
  EXPECT_FALSE(table.gradient.defined());
  EXPECT_EQ(table.touched.gradient.shape(), Shape({100, 16}));
  EXPECT_EQ(memory.bytes(Purpose::kGradients), 100 * 16 * 4 + 100 * 4);
  EXPECT_EQ(memory.bytes(Purpose::kOptimizer), 1'000'000 * (2 * 16 * 4 + 4));
  EXPECT_EQ(memory.bytes(Purpose::kComputeCopies), 0);
  EXPECT_EQ(parameters.elements(), 16'000'000);
  // More positions than rows touch each row once.
  Memory other(Memory::Mode::kDry);
  ParameterSet few(&other, DType::kF32, true);
  EXPECT_EQ(few.Add(TableSpec(30, 16, 100), false).touched.rows.shape(), Shape({30}));
}

TEST(ParameterSet, TablesForReadingKeepTheirStateAndNoGradient) {
  Memory memory(Memory::Mode::kDry);
  ParameterSet parameters(&memory, DType::kF32, false);
  const Parameter& table = parameters.Add(TableSpec(10, 4, 0), false);
  EXPECT_FALSE(table.touched.rows.defined());
  ASSERT_EQ(parameters.table_states().size(), 3U);
  EXPECT_EQ(parameters.table_states()[2].name, "table.last/table");
}

TEST(ParameterSet, Bf16TablesStartAtTheRoundedValuesOfF32Ones) {
  // More than a chunk of the drawing, and no multiple of one.
  constexpr int64_t kRows = 700, kWidth = 13;
  Memory memory(Memory::Mode::kReal), narrow_memory(Memory::Mode::kReal);
  ParameterSet wide(&memory, DType::kF32, true);
  TableStorage storage;
  storage.value = DType::kBF16;
  ParameterSet narrow(&narrow_memory, DType::kF32, true, storage);
  wide.Add(TableSpec(kRows, kWidth, 5), false);
  narrow.Add(TableSpec(kRows, kWidth, 5), false);
  wide.Initialize(3);
  narrow.Initialize(3);
  const std::vector<float> a = ValuesOf(wide.all().front().value),
                           b = ValuesOf(narrow.all().front().value);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(static_cast<float>(bf16(a[i])), b[i]) << i;
}

TEST(ParameterSet, ReinitializingIsAFunctionOfThePassAndForgetsMoments) {
  constexpr int64_t kRows = 40, kWidth = 6;
  Memory memory(Memory::Mode::kReal);
  ParameterSet parameters(&memory, DType::kF32, true);
  Parameter& table = parameters.Add(TableSpec(kRows, kWidth, 5), false);
  parameters.Initialize(3);
  const std::vector<float> first = ValuesOf(table.value);
  std::fill_n(table.table.m.data<float>(), kRows * kWidth, 1.0F);
  std::fill_n(table.table.v.data<float>(), kRows * kWidth, 2.0F);
  parameters.ReinitializeTable(table, 3, 1, 77);
  const std::vector<float> second = ValuesOf(table.value);
  double squares = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_NE(first[i], second[i]) << i;
    squares += static_cast<double>(second[i]) * second[i];
    const auto at = static_cast<int64_t>(i);
    EXPECT_EQ(table.table.m.data<float>()[at], 0);
    EXPECT_EQ(table.table.v.data<float>()[at], 0);
  }
  // The scale is kept: the mean square of 240 values is 0.25 * 0.973, its standard deviation 9 %.
  EXPECT_TRUE(std::abs(squares / (kRows * kWidth) / 0.243 - 1) <= 0.4);
  for (int64_t row = 0; row < kRows; ++row) EXPECT_EQ(table.table.last.data<uint32_t>()[row], 77U);
  parameters.ReinitializeTable(table, 3, 2, 90);
  EXPECT_NE(ValuesOf(table.value), second);
  parameters.ReinitializeTable(table, 3, 1, 90);
  EXPECT_EQ(ValuesOf(table.value), second);
  parameters.ReinitializeTable(table, 4, 1, 90);
  EXPECT_NE(ValuesOf(table.value), second);
}

}  // namespace
}  // namespace overtok

// The passes over table rows against plain loops in double: replay, lookup and update on every
// processor's code, and the edges: bf16 rows, tiny moments, long gaps, far rows.
#include "core/ops/table.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <limits>
#include <list>
#include <vector>

#include "core/ops/embedding.h"
#include "tests/core/ops/op_harness.h"

namespace overtok {
namespace {

using testing::Buffer;
using testing::FillNormal;
using testing::FillUniform;
using testing::Operand;
using testing::Role;
using testing::Storage;
using testing::ThreadScope;

Context TestContext() { return Context(testing::TestedDevice()); }

// The state of an update that keeps none.
TableState Values(const Buffer& value) {
  TableState state;
  state.value = value.tensor();
  return state;
}

constexpr double kBeta1 = 0.9, kBeta2 = 0.98, kEps = 1e-15;
TableRule Adam(double eps = kEps) { return {TableRule::Kind::kAdam, kBeta1, kBeta2, eps}; }

// A replay to `step` of a run of that many steps, at rates that differ from step to step, by the
// definitions of core/ops/table.h: no window, no recurrence.
class Replay {
 public:
  explicit Replay(int64_t step, double eps = kEps, double decay = 0) : eps_(eps) {
    for (std::vector<double>& entries : entries_) entries.assign(static_cast<size_t>(step + 1), 0);
    const auto at = [&](int k, int64_t i) -> double& {
      return entries_[static_cast<size_t>(k)][static_cast<size_t>(i)];
    };
    for (int64_t i = 0; i <= step; ++i) {
      const auto t = static_cast<double>(i);
      at(kPower1, i) = std::pow(kBeta1, t);
      at(kPower2, i) = std::pow(kBeta2, t);
      at(kRootPower2, i) = std::pow(kBeta2, t / 2);
      at(kGain, i) = RateOf(i) / (1 - std::pow(kBeta1, t + 1));
      at(kRoot, i) = 1 / std::sqrt(1 - std::pow(kBeta2, t + 1));
    }
    at(kKept, step) = 1;
    for (int64_t i = step - 1; i >= 0; --i)
      at(kKept, i) = at(kKept, i + 1) * (1 - RateOf(i) * decay);
    for (int64_t last = 0; last <= step; ++last) {
      for (int64_t i = last; i < step && i < last + 700; ++i) {
        const auto j = static_cast<double>(i - last + 1);
        const double e = 1 / at(kRoot, i) * std::pow(kBeta2, -j / 2);
        double term = at(kGain, i) / at(kRoot, i) * std::pow(kBeta1 / std::sqrt(kBeta2), j) *
                      at(kKept, i + 1);
        for (int k : {kMoved, kMovedEps, kMovedEps2}) {
          at(k, last) += term;
          term *= e;
        }
      }
      at(kSeriesFrom, last) = std::pow(1000 * eps, 2);
    }
    replay_ = {.step = step,
               .window = step,
               .window_f32 = step,
               .moved = Entries(kMoved),
               .moved_eps = Entries(kMovedEps),
               .moved_eps2 = Entries(kMovedEps2),
               .series_from = Entries(kSeriesFrom),
               .kept = Entries(kKept),
               .power1 = Entries(kPower1),
               .power2 = Entries(kPower2),
               .root_power2 = Entries(kRootPower2),
               .gain = Entries(kGain),
               .root = Entries(kRoot)};
    decay_ = decay;
  }
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;
  const TableReplay& operator*() const { return replay_; }

  static double RateOf(int64_t step) { return 0.01 + 1e-3 * static_cast<double>(step % 7); }
  // The same, step by step.
  void Walk(int64_t last, double& value, double& m, double& v) const {
    for (int64_t i = last; i < replay_.step; ++i) {
      const auto t = static_cast<double>(i + 1);
      m *= kBeta1;
      v *= kBeta2;
      value *= 1 - RateOf(i) * decay_;
      if (m != 0) {
        value -= RateOf(i) * (m / (1 - std::pow(kBeta1, t))) /
                 (std::sqrt(v / (1 - std::pow(kBeta2, t))) + eps_);
      }
    }
  }

 private:
  enum {
    kMoved,
    kMovedEps,
    kMovedEps2,
    kSeriesFrom,
    kKept,
    kPower1,
    kPower2,
    kRootPower2,
    kGain,
    kRoot,
    kCount
  };
  Tensor Entries(int k) {
    const std::vector<double>& entries = entries_[static_cast<size_t>(k)];
    tensors_.emplace_back(DType::kF64, Shape{static_cast<int64_t>(entries.size())}, entries);
    return tensors_.back().tensor();
  }
  std::vector<double> entries_[kCount];
  std::list<Buffer> tensors_;
  TableReplay replay_;
  double eps_, decay_ = 0;
};

constexpr int64_t kRows = 9, kStep = 400;
// All rows but three, and what they reflect: gaps of 0 to 400.
constexpr uint32_t kTouched[] = {0, 1, 3, 4, 6, 8};
constexpr uint32_t kLast[] = {400, 399, 10, 380, 250, 0, 77, 5, 1};

std::vector<Operand> StateOperands(int64_t width, bool by_row) {
  return {{.name = "value",
           .role = Role::kInputOutput,
           .storage = Storage::kStatistic,
           .shape = {kRows, width},
           .fill = [](Buffer& b) { FillNormal(b, 1, 1); },
           // Sums of many terms in f32 where steps are walked.
           .value_units = 8,
           .tensor_units = 8},
          {.name = "m",
           .role = Role::kInputOutput,
           .storage = Storage::kStatistic,
           .shape = {kRows, width},
           .fill = [](Buffer& b) { FillNormal(b, 2, 1e-3); }},
          {.name = "v",
           .role = Role::kInputOutput,
           .storage = Storage::kStatistic,
           .shape = by_row ? Shape{kRows} : Shape{kRows, width},
           .fill = [](Buffer& b) { FillUniform(b, 3, 1e-6, 1e-5); }},
          {.name = "last",
           .role = Role::kInputOutput,
           .storage = Storage::kFixed,
           .shape = {kRows},
           .fill =
               [](Buffer& b) {
                 for (int64_t i = 0; i < kRows; ++i) b.Set(i, kLast[i]);
               },
           .fixed = DType::kU32,
           .value_units = 0,
           .tensor_units = 0},
          {.name = "rows",
           .storage = Storage::kFixed,
           .shape = {6},
           .fill =
               [](Buffer& b) {
                 for (int64_t i = 0; i < 6; ++i) b.Set(i, kTouched[i]);
               },
           .fixed = DType::kU32}};
}

// Below and above a vector; in packs of four, of two and of one.
constexpr int64_t kWidths[] = {1, 16, 37, 170, 200};

TEST(Table, ReplayAgreesAcrossTypesProcessorsAndThreads) {
  const Replay replay(kStep, kEps, 0.5);
  for (const bool by_row : {false, true}) {
    for (const bool first_moment : {false, true}) {
      for (const int64_t width : kWidths) {
        testing::CheckOp(
            {.name = by_row ? "replay by row" : "replay",
             .operands = StateOperands(width, by_row),
             .run =
                 [&](const Context& c, const std::vector<Tensor>& t) {
                   TableState state = {t[0], t[1], t[2], t[3]};
                   TableRule rule = Adam();
                   if (!first_moment) {
                     state.m = Tensor();
                     rule.beta1 = 0;
                   }
                   TableReplayRows(c,
                                   {.state = state, .rule = rule, .replay = *replay, .rows = t[4]});
                 },
             .bf16 = false});
      }
    }
  }
}

TEST(Table, UpdateAgreesAcrossTypesProcessorsAndThreads) {
  const Buffer norm_squared(DType::kF64, {1}, {4});
  struct Case {
    TableRule::Kind kind;
    double beta1;  // 0: no first moment
  };
  for (const Case& tested : {Case{TableRule::Kind::kAdam, kBeta1}, Case{TableRule::Kind::kAdam, 0},
                             Case{TableRule::Kind::kAdagrad, 0}, Case{TableRule::Kind::kSgd, 0}}) {
    for (const bool by_row : {false, true}) {
      for (const int64_t width : kWidths) {
        std::vector<Operand> operands = StateOperands(width, by_row);
        operands[3].fill = [](Buffer& b) {
          for (int64_t i = 0; i < kRows; ++i) b.Set(i, kStep);
        };
        operands.push_back({.name = "gradient",
                            .storage = Storage::kStatistic,
                            .shape = {6, width},
                            .fill = [](Buffer& b) { FillNormal(b, 4, 1e-2); }});
        testing::CheckOp({.name = "update",
                          .operands = operands,
                          .run =
                              [&](const Context& c, const std::vector<Tensor>& t) {
                                TableState state = {t[0], t[1], t[2], t[3]};
                                if (tested.beta1 == 0) state.m = Tensor();
                                if (tested.kind == TableRule::Kind::kSgd) state.v = Tensor();
                                TableUpdate(c,
                                            {.state = state,
                                             .rule = {tested.kind, tested.beta1, kBeta2, kEps},
                                             .rows = t[4],
                                             .gradient = t[5],
                                             .clip = {norm_squared.tensor(), 1},
                                             .constants = {.correction1 = 0.5, .correction2 = 0.3},
                                             .rate = 0.01,
                                             .step = kStep});
                              },
                          .bf16 = false});
      }
    }
  }
}

// One row of f32 state per case.
struct Element {
  double m, v;
};
// Elements over the whole range of f32, eps of both recipes and one that outweighs everything.
TEST(Table, ReplayEqualsTheWalkOverSteps) {
  const std::vector<Element> elements = {
      {1e-3, 1e-4}, {-1, 3},      {1e-15, 1e-30},  {3e-16, 1e-30},  {1e-14, 1e-26}, {1e-10, 2e-20},
      {0, 0},       {0, 1e-6},    {1e-25, 0},      {-1e-12, 1e-24}, {1e-8, 3e-13},  {2e-19, 2e-38},
      {1e-20, 0},   {1e15, 1e30}, {-1e-30, 1e-37}, {1e-6, 1e-4},    {-1e-13, 1e-26}};
  const auto width = static_cast<int64_t>(elements.size());
  for (const double decay : {0.0, 2.0}) {
    for (const double eps : {1e-20, 1e-15, 1e-3}) {
      for (const int64_t step : {1, 40, 437, 900, 6000}) {
        const Replay replay(step, eps, decay);
        for (const int64_t gap : {1, 2, 33, 219, 438, 5000}) {
          if (gap > step) continue;
          Buffer value(DType::kF32, {1, width}), m(DType::kF32, {1, width}),
              v(DType::kF32, {1, width}), last(DType::kU32, {1}), rows(DType::kU32, {1}),
              y(DType::kF32, {1, width});
          last.Set(0, static_cast<double>(step - gap));
          for (int64_t i = 0; i < width; ++i) {
            value.Set(i, 0.3);
            m.Set(i, elements[static_cast<size_t>(i)].m);
            v.Set(i, elements[static_cast<size_t>(i)].v);
          }
          const Buffer value0(value), m0(m), v0(v), last0(last);
          const TableState state = {value.tensor(), m.tensor(), v.tensor(), last.tensor()};
          TableLookup(TestContext(), {state, Adam(eps), *replay, rows.tensor(), y.tensor()});
          EXPECT_TRUE(value.SameBits(value0) && m.SameBits(m0) && v.SameBits(v0) &&
                      last.SameBits(last0));
          TableReplayRows(TestContext(), {state, Adam(eps), *replay, rows.tensor()});
          EXPECT_TRUE(y.SameBits(value));
          EXPECT_EQ(last.Get(0), static_cast<double>(step));
          for (int64_t i = 0; i < width; ++i) {
            double x = value0.Get(i), m1 = m0.Get(i), v1 = v0.Get(i);
            replay.Walk(step - gap, x, m1, v1);
            // Some ten roundings of the way; two of the value. v near f32's least number is itself
            // cut to fewer bits, but its walk starts from what is stored.
            const double way = std::abs(x - value0.Get(i));
            const double bound = 0x1p-24 * (16 * way + 2 * std::abs(x) + 2 * 0.3);
            EXPECT_TRUE(std::abs(value.Get(i) - x) <= bound)
                << "eps " << eps << " step " << step << " gap " << gap << " element " << i << ": "
                << value.Get(i) << ", expected " << x;
            // What is below f32's least number with full precision may be 0, and so may the power
            // that v is scaled by.
            EXPECT_TRUE(std::abs(m.Get(i) - m1) <= 4 * 0x1p-24 * std::abs(m1) + 1.2e-38) << i;
            EXPECT_TRUE(std::abs(v.Get(i) - v1) <=
                        4 * 0x1p-24 * v1 + 1.2e-38 * std::max(1.0, v0.Get(i)))
                << i;
          }
        }
      }
    }
  }
}

// 1.5 between bf16 numbers 2^-7 apart: up and down by the share of the way.
TEST(Table, StochasticRoundingIsByShareAndByPosition) {
  constexpr int64_t kWidth = 70, kMany = 500;
  Buffer value(DType::kBF16, {kMany, kWidth}), rows(DType::kU32, {kMany}),
      gradient(DType::kF32, {kMany, kWidth});
  for (int64_t i = 0; i < kMany; ++i) rows.Set(i, static_cast<double>(i));
  for (int64_t i = 0; i < kMany * kWidth; ++i) {
    value.Set(i, 1.5);
    gradient.Set(i, -0x1p-7 * 0.25);
  }
  const auto update = [&](uint64_t key, int64_t step, Buffer& out) {
    TableUpdate(TestContext(), {.state = Values(out),
                                .rule = {TableRule::Kind::kSgd},
                                .rows = rows.tensor(),
                                .gradient = gradient.tensor(),
                                .clip = {},
                                .constants = {},
                                .rate = 1,
                                .step = step,
                                .random_key = key});
  };
  Buffer once(value), again(value), other_key(value), other_step(value);
  update(1, 5, once);
  {
    const ThreadScope threads(1);
    update(1, 5, again);
  }
  update(2, 5, other_key);
  update(1, 6, other_step);
  EXPECT_TRUE(once.SameBits(again));
  EXPECT_FALSE(once.SameBits(other_key));
  EXPECT_FALSE(once.SameBits(other_step));
  double up = 0;
  std::vector<double> by_column(kWidth, 0.0);
  for (int64_t i = 0; i < kMany * kWidth; ++i) {
    const double x = once.Get(i);
    ASSERT_TRUE(x == 1.5 || x == 1.5 + 0x1p-7) << x;
    up += x > 1.5 ? 1 : 0;
    by_column[static_cast<size_t>(i % kWidth)] += x > 1.5 ? 1 : 0;
  }
  // A quarter, within 5 standard deviations of a binomial count, in all and in each column.
  EXPECT_TRUE(std::abs(up - 0.25 * kMany * kWidth) <= 5 * std::sqrt(0.1875 * kMany * kWidth)) << up;
  for (const double count : by_column)
    EXPECT_TRUE(std::abs(count - 0.25 * kMany) <= 5 * std::sqrt(0.1875 * kMany)) << count;
}

// Arithmetic that is exact, so that only the random bits decide, in packs of every size.
TEST(Table, Bf16RowsAreRoundedAsOnTheCpu) {
  constexpr int64_t kMany = 70;
  for (const int64_t width : {64, 170, 341, 600}) {
    for (const auto start : {Buffer::Start::kOdd, Buffer::Start::kAligned}) {
      Buffer value(DType::kBF16, {kMany, width}, start), rows(DType::kU32, {kMany}),
          gradient(DType::kF32, {kMany, width}, start);
      for (int64_t i = 0; i < kMany; ++i) rows.Set(i, static_cast<double>(i));
      for (int64_t i = 0; i < kMany * width; ++i) {
        value.Set(i, i % 2 == 0 ? 1.5 : -1.5);
        gradient.Set(i, 0x1p-7 * static_cast<double>(i % 64) / 64);
      }
      Buffer on_cpu(value);
      const auto update = [&](const Context& context, const Buffer& out) {
        TableState state = Values(out);
        state.sharding = {.split = Split::kBlocks, .parts = 3, .part = 1};
        state.logical_rows = 4 * kShardBlock + kMany % kShardBlock;  // its blocks: 1 and 4
        TableUpdate(context, {.state = state,
                              .rule = {TableRule::Kind::kSgd},
                              .rows = rows.tensor(),
                              .gradient = gradient.tensor(),
                              .clip = {},
                              .constants = {},
                              .rate = 1,
                              .step = 9,
                              .random_key = 77});
      };
      update(TestContext(), value);
      update(CpuContext(), on_cpu);
      EXPECT_TRUE(value.SameBits(on_cpu)) << width;
      // A replay of rows without momentum is one product an element.
      const Replay replay(40, kEps, 0.5);
      const auto catch_up = [&](const Context& context, const Buffer& out) {
        const Buffer m(DType::kF32, {kMany, width}, start), v(m), last(DType::kU32, {kMany});
        TableReplayRows(context, {.state = {out.tensor(), m.tensor(), v.tensor(), last.tensor()},
                                  .rule = Adam(),
                                  .replay = *replay,
                                  .rows = rows.tensor(),
                                  .random_key = 78});
      };
      catch_up(TestContext(), value);
      EXPECT_FALSE(value.SameBits(on_cpu)) << width;
      catch_up(CpuContext(), on_cpu);
      EXPECT_TRUE(value.SameBits(on_cpu)) << width;
    }
  }
}

TEST(Table, Bf16KeepsInfinitiesAndNaN) {
  Buffer value(DType::kBF16, {1, 3}), rows(DType::kU32, {1}), gradient(DType::kF32, {1, 3});
  const float infinity = std::numeric_limits<float>::infinity();
  value.Set(0, infinity);
  value.Set(1, -infinity);
  value.Set(2, std::nan(""));
  TableUpdate(TestContext(), {.state = Values(value),
                              .rule = {TableRule::Kind::kSgd},
                              .rows = rows.tensor(),
                              .gradient = gradient.tensor(),
                              .clip = {},
                              .constants = {},
                              .rate = 1});
  EXPECT_EQ(value.Get(0), infinity);
  EXPECT_EQ(value.Get(1), -infinity);
  EXPECT_TRUE(std::isnan(value.Get(2)));
}

TEST(Table, LookupTakesAnyOrderRepeatsAndNoRow) {
  constexpr int64_t kWidth = 5;
  const Replay replay(kStep);
  Buffer value(DType::kBF16, {kRows, kWidth}), m(DType::kF32, {kRows, kWidth}),
      v(DType::kF32, {kRows, kWidth}), last(DType::kU32, {kRows}), all(DType::kU32, {kRows}),
      ids(DType::kU32, {4}), whole(DType::kF32, {kRows, kWidth}), y(DType::kF32, {4, kWidth}),
      narrow(DType::kBF16, {4, kWidth});
  FillNormal(value, 1, 1);
  FillNormal(m, 2, 1e-3);
  FillUniform(v, 3, 1e-6, 1e-5);
  FillNormal(y, 4, 1);
  for (int64_t i = 0; i < kRows; ++i) {
    last.Set(i, kLast[i]);
    all.Set(i, static_cast<double>(i));
  }
  const std::vector<uint32_t> order = {7, kNoRow, 2, 7};
  std::copy(order.begin(), order.end(), ids.tensor().data<uint32_t>());
  const TableState state = {value.tensor(), m.tensor(), v.tensor(), last.tensor()};
  TableLookup(TestContext(), {state, Adam(), *replay, all.tensor(), whole.tensor()});
  TableLookup(TestContext(), {state, Adam(), *replay, ids.tensor(), y.tensor()});
  TableLookup(TestContext(), {state, Adam(), *replay, ids.tensor(), narrow.tensor()});
  for (size_t t = 0; t < order.size(); ++t) {
    for (int64_t i = 0; i < kWidth; ++i) {
      const auto at = static_cast<int64_t>(t) * kWidth + i;
      const double expected = order[t] == kNoRow ? 0 : whole.Get(order[t] * kWidth + i);
      EXPECT_EQ(y.Get(at), expected);
      EXPECT_EQ(narrow.Get(at),
                static_cast<double>(static_cast<float>(bf16(static_cast<float>(expected)))));
    }
  }
  // Row 2 is 390 steps behind: the read is not the stored value.
  EXPECT_NE(whole.Get(2 * kWidth), value.Get(2 * kWidth));
}

// Ids above 65,535, and elements beyond 2^31: the table's pages exist only where they are touched.
TEST(Table, ReachesRowsBeyondTwoToThe31Elements) {
  if (testing::TestedDevice()->kind() == DeviceKind::kCuda)
    GTEST_SKIP() << "a GPU reaches no memory that the test maps itself";
  constexpr int64_t kWidth = 1024, kFar = (int64_t{1} << 31) / kWidth + 70001;
  constexpr size_t kBytes = static_cast<size_t>((kFar + 1) * kWidth) * sizeof(float);
  const auto map = [&] {
    void* data = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return data == MAP_FAILED ? nullptr : data;
  };
  void* const blocks[] = {map(), map(), map()};
  const auto unmap = [&] {
    for (void* block : blocks)
      if (block != nullptr) munmap(block, kBytes);
  };
  if (blocks[0] == nullptr || blocks[1] == nullptr || blocks[2] == nullptr) {
    unmap();
    GTEST_SKIP() << "no address space for sparse tables";
  }
  const auto tensor = [&](int k) { return Tensor(blocks[k], DType::kF32, {kFar + 1, kWidth}); };
  constexpr int64_t kIds[] = {70000, kFar};
  Buffer last(DType::kU32, {kFar + 1}), ids(DType::kU32, {2}), y(DType::kF32, {2, kWidth});
  const Buffer gradient(DType::kF32, {2, kWidth}, std::vector<double>(2 * kWidth, 0.5));
  std::vector<Tensor> touched;
  for (int64_t k = 0; k < 2; ++k) {
    ids.Set(k, static_cast<double>(kIds[k]));
    last.Set(kIds[k], 2);
    for (int t = 0; t < 3; ++t) touched.push_back(tensor(t).Rows(kIds[k], 1));
  }
  const testing::Lend lend(touched);
  const TableState state = {tensor(0), tensor(1), tensor(2), last.tensor()};
  const Tensor rows = ids.tensor();
  TableUpdate(TestContext(), {.state = state,
                              .rule = Adam(),
                              .rows = rows,
                              .gradient = gradient.tensor(),
                              .clip = {},
                              .constants = {.correction1 = 0.271, .correction2 = 0.0588},
                              .rate = 0.01,
                              .step = 2});
  const Replay replay(kStep);
  TableLookup(TestContext(), {state, Adam(), *replay, rows, y.tensor()});
  TableReplayRows(TestContext(), {state, Adam(), *replay, rows});
  double x = -0.01 * (0.05 / 0.271) / std::sqrt(0.02 * 0.25 / 0.0588), m = 0.05, v = 0.005;
  replay.Walk(3, x, m, v);
  for (int64_t k = 0; k < 2; ++k) {
    const float* value = state.value.data<float>() + kIds[k] * kWidth;
    for (const int64_t i : {int64_t{0}, kWidth - 1}) {
      EXPECT_TRUE(std::abs(value[i] - x) <= 32 * 0x1p-24 * std::abs(x)) << value[i] << ", " << x;
      EXPECT_EQ(y.Get(k * kWidth + i), value[i]);
    }
    EXPECT_EQ(last.Get(kIds[k]), static_cast<double>(kStep));
  }
  unmap();
}

TEST(Table, WhatIsHaltedWritesNothing) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Buffer value(dtype, {3, 5}), m(DType::kF32, {3, 5}), v(DType::kF32, {3, 5}),
        last(DType::kU32, {3}), rows(DType::kU32, {2}, {0, 2}), gradient(DType::kF32, {2, 5}),
        halted(DType::kU32, {1});
    FillNormal(value, 1, 1);
    FillNormal(m, 2, 1);
    FillUniform(v, 3, 1, 2);
    // What has halted the step.
    for (int64_t i = 0; i < gradient.size(); ++i)
      gradient.Set(i, std::numeric_limits<double>::quiet_NaN());
    for (int64_t i = 0; i < 3; ++i) last.Set(i, 4);
    const Buffer value0(value), m0(m), v0(v), last0(last);
    const auto update = [&] {
      TableUpdate(TestContext(),
                  {.state = {value.tensor(), m.tensor(), v.tensor(), last.tensor()},
                   .rule = Adam(),
                   .rows = rows.tensor(),
                   .gradient = gradient.tensor(),
                   .clip = {.norm_squared = {}, .max_norm = 0, .halted = halted.tensor()},
                   .constants = {},
                   .rate = 1,
                   .step = 4});
    };
    halted.Set(0, 1);
    update();
    EXPECT_TRUE(value.SameBits(value0) && m.SameBits(m0) && v.SameBits(v0) && last.SameBits(last0));
    halted.Set(0, 0);
    update();
    EXPECT_FALSE(value.SameBits(value0));
    EXPECT_EQ(last.Get(2), 5);
    EXPECT_EQ(last.Get(1), 4);
  }
}

TEST(Table, NoRowsIsNoWork) {
  Buffer value(DType::kF32, {2, 3}), rows(DType::kU32, {0}), gradient(DType::kF32, {0, 3});
  FillNormal(value, 1, 1);
  const Buffer before(value);
  TableUpdate(TestContext(), {.state = Values(value),
                              .rule = {TableRule::Kind::kSgd},
                              .rows = rows.tensor(),
                              .gradient = gradient.tensor(),
                              .clip = {},
                              .constants = {},
                              .rate = 1});
  EXPECT_TRUE(value.SameBits(before));
}

using TableDeathTest = ::testing::Test;
TEST(TableDeathTest, AnUpdateOfARowThatWasNotCaughtUpAborts) {
  Buffer value(DType::kF32, {2, 3}), m(DType::kF32, {2, 3}), v(DType::kF32, {2, 3}),
      last(DType::kU32, {2}), rows(DType::kU32, {1}), gradient(DType::kF32, {1, 3});
  EXPECT_DEATH(
      TableUpdate(TestContext(), {.state = {value.tensor(), m.tensor(), v.tensor(), last.tensor()},
                                  .rule = Adam(),
                                  .rows = rows.tensor(),
                                  .gradient = gradient.tensor(),
                                  .clip = {},
                                  .constants = {},
                                  .rate = 1,
                                  .step = 4}),
      "row .*of a table was not brought to the step");
}

}  // namespace
}  // namespace overtok

// Updates: optimizer passes over matrices, and rows of hashed tables.
#include <cmath>
#include <memory>
#include <utility>

#include "core/ops/kernels.h"
#include "optim/table_schedule.h"
#include "tools/op_cases.h"

namespace overtok {
namespace {

constexpr AdamConstants kAdam = {
    .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-20, .correction1 = 0.1, .correction2 = 0.02};
constexpr int64_t kRunSteps = 4;

// Touched rows, spread evenly over the table.
std::vector<uint32_t> TouchedRowsOf(const OpShapes& s) {
  std::vector<uint32_t> rows(static_cast<size_t>(s.touched));
  const int64_t stride = s.table_rows / s.touched;
  for (int64_t i = 0; i < s.touched; ++i)
    rows[static_cast<size_t>(i)] = static_cast<uint32_t>(i * stride + i * 5 % stride);
  return rows;
}

struct Table {
  TableState state;
  TableRule rule;
  TableReplay replay;  // to the last step of the run
  Tensor rows, last;   // last: input of what rows reflect before a call
};

// Values and both moments in f32. Rows stand at step `at` before a call.
Table MakeTable(const OpShapes& s, Operands& o, int64_t at) {
  OptimizerConfig config;
  config.adam_lr = 1e-3;
  TableSchedule schedule(config, kRunSteps, &o.memory());
  const Shape shape = {s.table_rows, s.table_width};
  Table table;
  table.state = {o.Normal(DType::kF32, shape), o.Normal(DType::kF32, shape),
                 o.Constant(DType::kF32, shape, 1), o.Take(DType::kU32, {s.table_rows})};
  table.rule = schedule.rule();
  table.replay = schedule.At(kRunSteps);
  table.rows = o.U32(TouchedRowsOf(s));
  table.last =
      o.U32(std::vector<uint32_t>(static_cast<size_t>(s.table_rows), static_cast<uint32_t>(at)));
  return table;
}

// A copy on the device: u32 moves as f32 does, bit for bit.
void Reset(const Context& c, const Table& table) {
  const Shape shape = table.last.shape();
  Cast(c, {Tensor(table.last.raw(), DType::kF32, shape),
           Tensor(table.state.last.raw(), DType::kF32, shape)});
}

}  // namespace

void AddOptimizerOps(const OpShapes& s, std::vector<OpCase>* cases) {
  const Shape matrix = {s.vocabulary, s.width};
  const auto add = [&](std::string name, DType dtype, Shape shape,
                       std::function<OpCall(Operands&)> prepare) {
    cases->push_back({std::move(name), NameOf(dtype), shape.ToString(),
                      [prepare = std::move(prepare), shape](Operands& o) {
                        o.memory().NeedScratch(OptimizerScratch(shape.elements()));
                        return prepare(o);
                      }});
  };
  const auto normal = [](Operands& o, Shape shape) { return o.Normal(DType::kF32, shape); };
  const auto zeros = [](Operands& o, Shape shape) { return o.Constant(DType::kF32, shape, 0); };
  add("sum_squares", DType::kF32, matrix, [=](Operands& o) -> OpCall {
    const SumSquaresArgs args = {normal(o, matrix),
                                 o.Take(DType::kF64, {ElementBlocks(matrix.elements())})};
    return {[=](const Context& c) { SumSquares(c, args); }};
  });
  // The update of one matrix of a block, and of the stack of those of all layers.
  const Shape inner = {s.inner, s.width}, stack = {s.layers, s.width, s.width};
  for (const DType dtype : s.newton_schulz) {
    add("muon_momentum", dtype, inner, [=](Operands& o) -> OpCall {
      const MuonMomentumArgs args = {.gradient = normal(o, inner),
                                     .buffer = zeros(o, inner),
                                     .x = o.Take(dtype, inner),
                                     .norm_squared = o.Take(DType::kF64, {1}),
                                     .clip = {},
                                     .momentum = 0.95};
      return {[=](const Context& c) { MuonMomentum(c, args); }};
    });
    add("scale_by_norm", dtype, stack, [=](Operands& o) -> OpCall {
      const ScaleByNormArgs args = {o.Normal(dtype, stack), o.Constant(DType::kF64, {s.layers}, 1),
                                    1e-5};
      return {[=](const Context& c) { ScaleByNorm(c, args); }};
    });
    add("newton_schulz_polynomial", dtype, stack, [=](Operands& o) -> OpCall {
      const NewtonSchulzPolynomialArgs args = {o.Normal(dtype, stack), o.Normal(dtype, stack), 0,
                                               0.5, 0.5};
      return {[=](const Context& c) { NewtonSchulzPolynomial(c, args); }};
    });
    add("hyperball_update", dtype, inner, [=](Operands& o) -> OpCall {
      const HyperballUpdateArgs args = {normal(o, inner), o.Normal(dtype, inner), 1e-3};
      return {[=](const Context& c) { HyperballUpdate(c, args); }};
    });
  }
  add("round_to_tf32", DType::kF32, stack, [=](Operands& o) -> OpCall {
    const RoundToTF32Args args = {normal(o, stack), o.Take(DType::kF32, stack)};
    return {[=](const Context& c) { RoundToTF32(c, args); }};
  });
  add("adamh_moments", DType::kF32, matrix, [=](Operands& o) -> OpCall {
    const AdamHMomentsArgs args = {
        normal(o, matrix),
        normal(o, matrix),
        zeros(o, matrix),
        zeros(o, matrix),
        o.Take(DType::kF64, {ElementBlocks(matrix.elements()), kBlockSums}),
        {},
        kAdam};
    return {[=](const Context& c) { AdamHMoments(c, args); }};
  });
  add("adamh_move", DType::kF32, matrix, [=](Operands& o) -> OpCall {
    const AdamHMoveArgs args = {normal(o, matrix),
                                normal(o, matrix),
                                o.Constant(DType::kF32, matrix, 1),
                                o.Constant(DType::kF64, {kBlockSums}, 1),
                                kAdam,
                                1e-3};
    return {[=](const Context& c) { AdamHMove(c, args); }};
  });
  add("adam_update", DType::kF32, matrix, [=](Operands& o) -> OpCall {
    const AdamUpdateArgs args = {
        normal(o, matrix), normal(o, matrix), zeros(o, matrix), zeros(o, matrix), {}, kAdam, 1e-3};
    return {[=](const Context& c) { AdamUpdate(c, args); }};
  });
}

void AddTableRowOps(const OpShapes& s, std::vector<OpCase>* cases) {
  const Shape touched = {s.touched, s.table_width};
  const auto add = [&](std::string name, std::function<OpCall(Operands&)> prepare) {
    cases->push_back({std::move(name), "f32", touched.ToString(), std::move(prepare)});
  };
  add("table_lookup", [=](Operands& o) -> OpCall {
    const Table t = MakeTable(s, o, kRunSteps - 1);
    const Tensor y = o.Take(DType::kF32, touched);
    return {[=](const Context& c) {
              TableLookup(c, {t.state, t.rule, OnDevice(c, t.replay), t.rows, y});
            },
            [=](const Context& c) { Reset(c, t); }};
  });
  // One silent step behind.
  add("table_replay_rows", [=](Operands& o) -> OpCall {
    const Table t = MakeTable(s, o, kRunSteps - 1);
    return {[=](const Context& c) {
              TableReplayRows(c, {t.state, t.rule, OnDevice(c, t.replay), t.rows});
            },
            [=](const Context& c) { Reset(c, t); }};
  });
  add("table_update", [=](Operands& o) -> OpCall {
    const Table t = MakeTable(s, o, 0);
    const Tensor gradient = o.Normal(DType::kF32, touched);
    return {[=](const Context& c) {
              TableUpdate(c, {.state = t.state,
                              .rule = t.rule,
                              .rows = t.rows,
                              .gradient = gradient,
                              .clip = {},
                              .constants = {},
                              .rate = 1e-3});
            },
            [=](const Context& c) { Reset(c, t); }};
  });
  // Two ranks that touched the same rows.
  add("row_tree_sum", [=](Operands& o) -> OpCall {
    const int64_t rows = s.touched / 2;
    std::vector<uint32_t> order, starts;  // u64 in halves, the lower one first
    for (int64_t row = 0; row < rows; ++row) {
      starts.push_back(static_cast<uint32_t>(2 * row));
      for (const int64_t from : {row, rows + row}) {
        order.push_back(static_cast<uint32_t>(from));
        order.push_back(static_cast<uint32_t>(row));
      }
    }
    starts.push_back(static_cast<uint32_t>(2 * rows));
    const Tensor pairs = o.U32(order);
    const auto part_begin =
        std::make_shared<std::vector<int64_t>>(std::vector<int64_t>{0, rows, 2 * rows});
    const RowTreeSumArgs args = {.contributions = o.Normal(DType::kF32, {2 * rows, s.table_width}),
                                 .order = Tensor(pairs.raw(), DType::kU64, {2 * rows}),
                                 .starts = o.U32(starts),
                                 .part_begin = *part_begin,
                                 .leaves = 2,
                                 .out = o.Take(DType::kF32, {rows, s.table_width})};
    return {[=](const Context& c) {
      RowTreeSumArgs call = args;
      call.part_begin = *part_begin;
      RowTreeSum(c, call);
    }};
  });
}

}  // namespace overtok

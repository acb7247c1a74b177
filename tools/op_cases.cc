// Activations, lookups, losses and sums.
#include "tools/op_cases.h"

#include <utility>

#include "core/exact_sum.h"
#include "core/ops/kernels.h"

namespace overtok {
namespace {

class Adder {
 public:
  Adder(std::string storage, std::vector<OpCase>* cases)
      : storage_(std::move(storage)), cases_(*cases) {}
  void operator()(std::string name, Shape shape, std::function<OpCall(Operands&)> prepare) {
    cases_.push_back({std::move(name), storage_, shape.ToString(), std::move(prepare)});
  }

 private:
  std::string storage_;
  std::vector<OpCase>& cases_;
};

void AddElementOps(const OpShapes& s, std::vector<OpCase>* cases) {
  const Shape rows = {s.tokens(), s.width};
  Adder("f32", cases)("fill", rows, [=](Operands& o) -> OpCall {
    const Tensor x = o.Take(DType::kF32, rows);
    return {[=](const Context& c) { Fill(c, {.x = x, .value = 0}); }};
  });
  Adder("f32 to bf16", cases)("cast", rows, [=](Operands& o) -> OpCall {
    const CastArgs args = {o.Normal(DType::kF32, rows), o.Take(DType::kBF16, rows)};
    return {[=](const Context& c) { Cast(c, args); }};
  });
  Adder("f32", cases)("weighted_sum", {s.tokens()}, [=](Operands& o) -> OpCall {
    const WeightedSumArgs args = {o.Normal(DType::kF32, {s.tokens()}),
                                  o.Constant(DType::kF32, {s.tokens()}, 1),
                                  o.Take(DType::kF64, {1})};
    return {[=](const Context& c) { WeightedSum(c, args); }};
  });
  const Shape matrix = {s.inner, s.width};
  Adder("f32", cases)("ordered_sum", matrix, [=](Operands& o) -> OpCall {
    const std::vector<Tensor> parts = {o.Normal(DType::kF32, matrix), o.Normal(DType::kF32, matrix),
                                       o.Normal(DType::kF32, matrix),
                                       o.Normal(DType::kF32, matrix)};
    const Tensor out = o.Take(DType::kF32, matrix);
    return {[=](const Context& c) {
      OrderedSum(c, {.parts = parts, .out = out, .order = OrderedSumArgs::Order::kTree});
    }};
  });
  // Half of a matrix, by columns.
  Adder("f32", cases)("copy_region", {s.inner, s.width / 2}, [=](Operands& o) -> OpCall {
    const Region region = Region::Part(matrix, {Split::kColumns, 2, 0, 1});
    const CopyRegionArgs args = {region, o.Normal(DType::kF32, matrix),
                                 o.Take(DType::kF32, {s.inner, s.width / 2})};
    return {[=](const Context& c) { CopyRegion(c, args); }};
  });
  // Rows of a table that a batch touches.
  Adder("f32", cases)("copy_rows", {s.touched, s.table_width}, [=](Operands& o) -> OpCall {
    const CopyRowsArgs args = {.from = o.Normal(DType::kF32, {s.table_rows, s.table_width}),
                               .to = o.Take(DType::kF32, {s.touched, s.table_width}),
                               .from_rows = o.Ids(s.touched, s.table_rows)};
    return {[=](const Context& c) { CopyRows(c, args); }};
  });
  // Sums of squares, one for each of those rows.
  const Shape words = {1, ExactSum::kWords};
  Adder("f64", cases)("add_exact", {s.touched}, [=](Operands& o) -> OpCall {
    const AddExactArgs args = {o.Constant(DType::kF64, {s.touched}, 0.1),
                               o.Take(DType::kI64, words)};
    return {[=](const Context& c) { AddExact(c, args); }};
  });
  // Of 8 ranks.
  Adder("f64", cases)("round_exact", {8, 1}, [=](Operands& o) -> OpCall {
    const RoundExactArgs args = {o.Take(DType::kI64, {8, 1, ExactSum::kWords}),
                                 o.Take(DType::kF64, {1})};
    return {[=](const Context& c) { RoundExact(c, args); }};
  });
  Adder("f64", cases)("halt_unless_finite", {8}, [=](Operands& o) -> OpCall {
    const HaltUnlessFiniteArgs args = {o.Constant(DType::kF64, {8}, 1), o.Take(DType::kU32, {1})};
    return {[=](const Context& c) { HaltUnlessFinite(c, args); }};
  });
}

void AddLookups(const OpShapes& s, DType act, std::vector<OpCase>* cases) {
  Adder add(std::string("f32 to ") + NameOf(act), cases);
  const Shape rows = {s.tokens(), s.width}, table = {s.vocabulary, s.width};
  add("embedding_forward", rows, [=](Operands& o) -> OpCall {
    const EmbeddingForwardArgs args = {o.Ids(s.tokens(), s.vocabulary),
                                       o.Normal(DType::kF32, table), o.Take(act, rows)};
    return {[=](const Context& c) { EmbeddingForward(c, args); }};
  });
  add("embedding_backward", rows, [=](Operands& o) -> OpCall {
    const EmbeddingBackwardArgs args = {o.Ids(s.tokens(), s.vocabulary), o.Normal(act, rows),
                                        o.Constant(DType::kF32, table, 0)};
    o.memory().NeedScratch(EmbeddingBackwardScratch(s.tokens()));
    return {[=](const Context& c) { EmbeddingBackward(c, args); }};
  });
}

void AddLosses(const OpShapes& s, DType act, std::vector<OpCase>* cases) {
  Adder add(std::string("f32 to ") + NameOf(act), cases);
  const auto loss = [=](Operands& o, Shape shape) {
    const int64_t rows = shape[0];
    return SoftmaxXentArgs{.logits = o.Normal(DType::kF32, shape),
                           .targets = o.Ids(rows, shape[1]),
                           .weight = o.Constant(DType::kF32, {rows}, 1),
                           .dlogits = o.Take(act, shape),
                           .loss = o.Take(DType::kF32, {rows}),
                           .lse = o.Take(DType::kF32, {rows})};
  };
  std::vector<Shape> tiles = {{s.tile_rows, s.vocabulary}};
  if (s.candidates > 0) tiles.push_back({s.candidate_rows, s.candidates});
  for (const Shape& tile : tiles) {
    add("softmax_xent", tile, [=](Operands& o) -> OpCall {
      const SoftmaxXentArgs args = loss(o, tile);
      return {[=](const Context& c) { SoftmaxXent(c, args); }};
    });
  }
  const Shape tile = tiles[0];
  const Shape stats = {1, s.tile_rows, 3};
  add("softmax_shard_stats", tile, [=](Operands& o) -> OpCall {
    const SoftmaxXentArgs a = loss(o, tile);
    const SoftmaxShardStatsArgs args = {a.logits, a.targets, Tensor(),
                                        o.Take(DType::kF64, {s.tile_rows, 3})};
    return {[=](const Context& c) { SoftmaxShardStats(c, args); }};
  });
  add("softmax_xent_shard", tile, [=](Operands& o) -> OpCall {
    const SoftmaxXentArgs a = loss(o, tile);
    const SoftmaxXentShardArgs args = {.logits = a.logits,
                                       .targets = a.targets,
                                       .weight = a.weight,
                                       .dlogits = a.dlogits,
                                       .loss = a.loss,
                                       .lse = a.lse,
                                       .all_stats = o.Constant(DType::kF64, stats, 4)};
    return {[=](const Context& c) { SoftmaxXentShard(c, args); }};
  });
}

}  // namespace

void AddActivationOps(const OpShapes& s, DType act, std::vector<OpCase>* cases) {
  Adder add(NameOf(act), cases);
  const Shape rows = {s.tokens(), s.width}, heads = {s.tokens(), s.heads, s.head_width};
  const Shape inner = {s.tokens(), s.inner}, gain = {s.width}, head_gain = {s.head_width};
  add("add", rows, [=](Operands& o) -> OpCall {
    const AddArgs args = {o.Normal(act, rows), o.Normal(act, rows)};
    return {[=](const Context& c) { Add(c, args); }};
  });
  add("rms_norm_forward", rows, [=](Operands& o) -> OpCall {
    const RmsNormForwardArgs args = {.x = o.Normal(act, rows),
                                     .gain = o.Constant(DType::kF32, gain, 1),
                                     .residual = Tensor(),
                                     .y = o.Take(act, rows),
                                     .rstd = o.Take(DType::kF32, {s.tokens()})};
    return {[=](const Context& c) { RmsNormForward(c, args); }};
  });
  add("rms_norm_backward", rows, [=](Operands& o) -> OpCall {
    const RmsNormBackwardArgs args = {.dy = o.Normal(act, rows),
                                      .x = o.Normal(act, rows),
                                      .gain = o.Constant(DType::kF32, gain, 1),
                                      .rstd = o.Constant(DType::kF32, {s.tokens()}, 1),
                                      .dx = o.Take(act, rows),
                                      .dgain = o.Take(DType::kF32, gain)};
    o.memory().NeedScratch(RmsNormBackwardScratch(s.tokens(), s.width, act));
    return {[=](const Context& c) { RmsNormBackward(c, args); }};
  });
  add("qk_norm_rope_forward", heads, [=](Operands& o) -> OpCall {
    const QkNormRopeForwardArgs args = {
        .x = o.Normal(act, heads),
        .gain = o.Constant(DType::kF32, head_gain, 1),
        .y = o.Take(act, heads),
        .rstd = o.Take(DType::kF32, {s.tokens(), s.heads}),
        .tables = o.Tables(s.length, s.head_width, act == DType::kBF16)};
    return {[=](const Context& c) { QkNormRopeForward(c, args); }};
  });
  add("qk_norm_rope_backward", heads, [=](Operands& o) -> OpCall {
    const QkNormRopeBackwardArgs args = {
        .dy = o.Normal(act, heads),
        .x = o.Normal(act, heads),
        .gain = o.Constant(DType::kF32, head_gain, 1),
        .rstd = o.Constant(DType::kF32, {s.tokens(), s.heads}, 1),
        .dx = o.Take(act, heads),
        .dgain = o.Take(DType::kF32, head_gain),
        .tables = o.Tables(s.length, s.head_width, act == DType::kBF16)};
    o.memory().NeedScratch(QkNormRopeBackwardScratch(s.tokens(), s.heads, s.head_width, act));
    return {[=](const Context& c) { QkNormRopeBackward(c, args); }};
  });
  add("swiglu_forward", inner, [=](Operands& o) -> OpCall {
    const SwiGluForwardArgs args = {o.Normal(act, inner), o.Normal(act, inner), o.Take(act, inner)};
    return {[=](const Context& c) { SwiGluForward(c, args); }};
  });
  add("swiglu_backward", inner, [=](Operands& o) -> OpCall {
    const SwiGluBackwardArgs args = {o.Normal(act, inner), o.Normal(act, inner),
                                     o.Normal(act, inner), o.Take(act, inner), o.Take(act, inner)};
    return {[=](const Context& c) { SwiGluBackward(c, args); }};
  });
  AddLookups(s, act, cases);
  AddLosses(s, act, cases);
}

std::vector<OpCase> OpCases(const OpShapes& shapes) {
  std::vector<OpCase> cases;
  AddElementOps(shapes, &cases);
  for (const DType act : shapes.activations) AddActivationOps(shapes, act, &cases);
  AddOptimizerOps(shapes, &cases);
  AddTableRowOps(shapes, &cases);
  for (const DType act : shapes.activations) AddProducts(shapes, act, &cases);
  return cases;
}

}  // namespace overtok

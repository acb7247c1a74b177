#include "tools/op_cases.h"

#include <cmath>
#include <utility>

#include "core/ops/kernels.h"
#include "core/rng.h"
#include "optim/table_schedule.h"

namespace overtok {
namespace {

using Call = std::function<void(const Context&)>;

constexpr int64_t kBatch = 8, kLength = 1024, kTokens = kBatch * kLength;
constexpr int64_t kWidth = 768, kInner = 2048, kHeads = 12, kKvHeads = 4, kHeadWidth = 64;
constexpr int64_t kVocabulary = 32000;
constexpr int64_t kTileRows = 256;                     // rows of one tile of logits
constexpr int64_t kMatrix = kVocabulary * kWidth;      // elements of the largest matrix
constexpr int64_t kStack = 8, kNewtonSchulz = kWidth;  // square matrices in a stack

// Operands: normal values, ids, and the like.
class Operands {
 public:
  explicit Operands(Memory& memory) : memory_(memory) {}

  Tensor Normal(DType dtype, Shape shape) {
    const Tensor wide = Take(DType::kF32, shape);
    FillTruncatedNormal(key_++, 0, 1.0F, wide);
    if (dtype == DType::kF32) return wide;
    const Tensor narrow = Take(dtype, shape);
    Cast(CpuContext(), {.x = wide, .y = narrow});
    return narrow;
  }
  Tensor Constant(DType dtype, Shape shape, double value) {
    const Tensor x = Take(dtype, shape);
    Fill(CpuContext(), {.x = x, .value = value});
    return x;
  }
  Tensor Ids(int64_t count) {
    const Tensor ids = Take(DType::kU32, {count});
    for (int64_t i = 0; i < count; ++i)
      ids.data<uint32_t>()[i] = Philox(key_, static_cast<uint64_t>(i), 0)[0] % kVocabulary;
    ++key_;
    return ids;
  }
  Tensor Take(DType dtype, Shape shape) {
    return memory_.Take(Purpose::kActivations, "operand", dtype, shape);
  }
  RopeTables Tables(bool round_to_bf16) {
    const RopeTables tables = {Take(DType::kF32, {kLength, kHeadWidth / 2}),
                               Take(DType::kF32, {kLength, kHeadWidth / 2})};
    FillRopeTables(10000, round_to_bf16, tables);
    return tables;
  }
  Memory& memory() { return memory_; }

 private:
  Memory& memory_;
  uint64_t key_ = 1;
};

std::string Text(std::initializer_list<int64_t> dims) { return Shape(dims).ToString(); }

void AddActivationOps(DType act, std::vector<OpCase>& cases) {
  const std::string storage = NameOf(act);
  const auto size = static_cast<double>(SizeOf(act));
  const Shape rows = {kTokens, kWidth};
  const auto add = [&](std::string name, Shape shape, double passes,
                       std::function<Call(Operands&)> prepare) {
    cases.push_back({std::move(name), storage, shape.ToString(), Ceiling::kMemory,
                     passes * size * static_cast<double>(shape.elements()),
                     [prepare = std::move(prepare)](Memory& memory) {
                       Operands operands(memory);
                       return prepare(operands);
                     }});
  };
  add("add", rows, 3, [=](Operands& o) -> Call {
    const AddArgs args = {o.Normal(act, rows), o.Normal(act, rows)};
    return [=](const Context& c) { Add(c, args); };
  });
  add("rms_norm_forward", rows, 2, [=](Operands& o) -> Call {
    const RmsNormForwardArgs args = {.x = o.Normal(act, rows),
                                     .gain = o.Constant(DType::kF32, {kWidth}, 1),
                                     .residual = Tensor(),
                                     .y = o.Take(act, rows),
                                     .rstd = o.Take(DType::kF32, {kTokens})};
    return [=](const Context& c) { RmsNormForward(c, args); };
  });
  add("rms_norm_backward", rows, 3, [=](Operands& o) -> Call {
    const RmsNormBackwardArgs args = {.dy = o.Normal(act, rows),
                                      .x = o.Normal(act, rows),
                                      .gain = o.Constant(DType::kF32, {kWidth}, 1),
                                      .rstd = o.Constant(DType::kF32, {kTokens}, 1),
                                      .dx = o.Take(act, rows),
                                      .dgain = o.Take(DType::kF32, {kWidth})};
    o.memory().NeedScratch(RmsNormBackwardScratch(kTokens, kWidth, act));
    return [=](const Context& c) { RmsNormBackward(c, args); };
  });
  const Shape heads = {kTokens, kHeads, kHeadWidth};
  add("qk_norm_rope_forward", heads, 2, [=](Operands& o) -> Call {
    const QkNormRopeForwardArgs args = {.x = o.Normal(act, heads),
                                        .gain = o.Constant(DType::kF32, {kHeadWidth}, 1),
                                        .y = o.Take(act, heads),
                                        .rstd = o.Take(DType::kF32, {kTokens, kHeads}),
                                        .tables = o.Tables(act == DType::kBF16)};
    return [=](const Context& c) { QkNormRopeForward(c, args); };
  });
  add("qk_norm_rope_backward", heads, 3, [=](Operands& o) -> Call {
    const QkNormRopeBackwardArgs args = {.dy = o.Normal(act, heads),
                                         .x = o.Normal(act, heads),
                                         .gain = o.Constant(DType::kF32, {kHeadWidth}, 1),
                                         .rstd = o.Constant(DType::kF32, {kTokens, kHeads}, 1),
                                         .dx = o.Take(act, heads),
                                         .dgain = o.Take(DType::kF32, {kHeadWidth}),
                                         .tables = o.Tables(act == DType::kBF16)};
    o.memory().NeedScratch(QkNormRopeBackwardScratch(kTokens, kHeads, kHeadWidth, act));
    return [=](const Context& c) { QkNormRopeBackward(c, args); };
  });
  const Shape inner = {kTokens, kInner};
  add("swiglu_forward", inner, 3, [=](Operands& o) -> Call {
    const SwiGluForwardArgs args = {o.Normal(act, inner), o.Normal(act, inner), o.Take(act, inner)};
    return [=](const Context& c) { SwiGluForward(c, args); };
  });
  add("swiglu_backward", inner, 5, [=](Operands& o) -> Call {
    const SwiGluBackwardArgs args = {o.Normal(act, inner), o.Normal(act, inner),
                                     o.Normal(act, inner), o.Take(act, inner), o.Take(act, inner)};
    return [=](const Context& c) { SwiGluBackward(c, args); };
  });
}

void AddTableOps(std::vector<OpCase>& cases) {
  const auto values = static_cast<double>(kTokens * kWidth);
  const auto elements = static_cast<double>(kTokens * kWidth);
  cases.push_back({"fill", "f32", Text({kTokens, kWidth}), Ceiling::kMemory, 4 * elements,
                   [](Memory& memory) -> Call {
                     Operands o(memory);
                     const Tensor x = o.Take(DType::kF32, {kTokens, kWidth});
                     return [=](const Context& c) { Fill(c, {.x = x, .value = 0}); };
                   }});
  cases.push_back({"cast", "f32 to bf16", Text({kTokens, kWidth}), Ceiling::kMemory, 6 * elements,
                   [](Memory& memory) -> Call {
                     Operands o(memory);
                     const CastArgs args = {o.Normal(DType::kF32, {kTokens, kWidth}),
                                            o.Take(DType::kBF16, {kTokens, kWidth})};
                     return [=](const Context& c) { Cast(c, args); };
                   }});
  cases.push_back({"embedding_forward", "f32", Text({kTokens, kWidth}), Ceiling::kMemory,
                   8 * values, [](Memory& memory) -> Call {
                     Operands o(memory);
                     const EmbeddingForwardArgs args = {
                         o.Ids(kTokens), o.Normal(DType::kF32, {kVocabulary, kWidth}),
                         o.Take(DType::kF32, {kTokens, kWidth})};
                     return [=](const Context& c) { EmbeddingForward(c, args); };
                   }});
  cases.push_back({"embedding_backward", "f32", Text({kTokens, kWidth}), Ceiling::kMemory,
                   12 * values, [](Memory& memory) -> Call {
                     Operands o(memory);
                     const EmbeddingBackwardArgs args = {
                         o.Ids(kTokens), o.Normal(DType::kF32, {kTokens, kWidth}),
                         o.Constant(DType::kF32, {kVocabulary, kWidth}, 0)};
                     memory.NeedScratch(EmbeddingBackwardScratch(kTokens));
                     return [=](const Context& c) { EmbeddingBackward(c, args); };
                   }});
  for (const DType gradient : {DType::kF32, DType::kBF16}) {
    const double bytes = 4 + static_cast<double>(SizeOf(gradient));
    cases.push_back(
        {"softmax_xent", std::string("f32 to ") + NameOf(gradient), Text({kTileRows, kVocabulary}),
         Ceiling::kMemory, bytes * static_cast<double>(kTileRows * kVocabulary),
         [gradient](Memory& memory) -> Call {
           Operands o(memory);
           const SoftmaxXentArgs args = {.logits = o.Normal(DType::kF32, {kTileRows, kVocabulary}),
                                         .targets = o.Ids(kTileRows),
                                         .weight = o.Constant(DType::kF32, {kTileRows}, 1),
                                         .dlogits = o.Take(gradient, {kTileRows, kVocabulary}),
                                         .loss = o.Take(DType::kF32, {kTileRows}),
                                         .lse = o.Take(DType::kF32, {kTileRows})};
           return [=](const Context& c) { SoftmaxXent(c, args); };
         }});
  }
}

void AddOptimizerOps(std::vector<OpCase>& cases) {
  const Shape matrix = {kVocabulary, kWidth}, stack = {kStack, kNewtonSchulz, kNewtonSchulz};
  const auto add = [&](std::string name, Shape shape, double bytes,
                       std::function<Call(Operands&)> prepare) {
    cases.push_back({std::move(name), "f32", shape.ToString(), Ceiling::kMemory,
                     bytes * static_cast<double>(shape.elements()),
                     [prepare = std::move(prepare)](Memory& memory) {
                       Operands operands(memory);
                       memory.NeedScratch(OptimizerScratch(kMatrix));
                       return prepare(operands);
                     }});
  };
  const AdamConstants adam = {
      .beta1 = 0.9, .beta2 = 0.98, .eps = 1e-20, .correction1 = 0.1, .correction2 = 0.02};
  add("sum_squares", matrix, 4, [=](Operands& o) -> Call {
    const SumSquaresArgs args = {o.Normal(DType::kF32, matrix),
                                 o.Take(DType::kF64, {ElementBlocks(kMatrix)})};
    return [=](const Context& c) { SumSquares(c, args); };
  });
  add("muon_momentum", stack, 16, [=](Operands& o) -> Call {
    const MuonMomentumArgs args = {.gradient = o.Normal(DType::kF32, stack),
                                   .buffer = o.Constant(DType::kF32, stack, 0),
                                   .x = o.Take(DType::kF32, stack),
                                   .norm_squared = o.Take(DType::kF64, {1}),
                                   .clip = {},
                                   .momentum = 0.95};
    return [=](const Context& c) { MuonMomentum(c, args); };
  });
  add("scale_by_norm", stack, 8, [=](Operands& o) -> Call {
    const ScaleByNormArgs args = {o.Normal(DType::kF32, stack),
                                  o.Constant(DType::kF64, {kStack}, 1), 1e-5};
    return [=](const Context& c) { ScaleByNorm(c, args); };
  });
  add("newton_schulz_polynomial", stack, 12, [=](Operands& o) -> Call {
    const NewtonSchulzPolynomialArgs args = {o.Normal(DType::kF32, stack),
                                             o.Normal(DType::kF32, stack), 0, 0.5, 0.5};
    return [=](const Context& c) { NewtonSchulzPolynomial(c, args); };
  });
  // Pass 1 reads w and u, pass 2 reads both and writes w.
  add("hyperball_update", matrix, 20, [=](Operands& o) -> Call {
    const HyperballUpdateArgs args = {o.Normal(DType::kF32, matrix), o.Normal(DType::kF32, matrix),
                                      1e-3};
    return [=](const Context& c) { HyperballUpdate(c, args); };
  });
  add("adamh_moments", matrix, 24, [=](Operands& o) -> Call {
    const AdamHMomentsArgs args = {o.Normal(DType::kF32, matrix),
                                   o.Normal(DType::kF32, matrix),
                                   o.Constant(DType::kF32, matrix, 0),
                                   o.Constant(DType::kF32, matrix, 0),
                                   o.Take(DType::kF64, {ElementBlocks(kMatrix), kBlockSums}),
                                   {},
                                   adam};
    return [=](const Context& c) { AdamHMoments(c, args); };
  });
  add("adamh_move", matrix, 16, [=](Operands& o) -> Call {
    const AdamHMoveArgs args = {o.Normal(DType::kF32, matrix),
                                o.Normal(DType::kF32, matrix),
                                o.Constant(DType::kF32, matrix, 1),
                                o.Constant(DType::kF64, {kBlockSums}, 1),
                                adam,
                                1e-3};
    return [=](const Context& c) { AdamHMove(c, args); };
  });
  add("adam_update", matrix, 28, [=](Operands& o) -> Call {
    const AdamUpdateArgs args = {o.Normal(DType::kF32, matrix),
                                 o.Normal(DType::kF32, matrix),
                                 o.Constant(DType::kF32, matrix, 0),
                                 o.Constant(DType::kF32, matrix, 0),
                                 {},
                                 adam,
                                 1e-3};
    return [=](const Context& c) { AdamUpdate(c, args); };
  });
}

// Rows spread over a table of hashed n-grams, as a batch touches them, one step behind before the
// replay. Values and both moments in f32.
void AddTableRowOps(std::vector<OpCase>& cases) {
  constexpr int64_t kRows = 65536, kRowWidth = 256, kTouched = 8192, kSteps = 4;
  const auto add = [&](std::string name, double tensors, bool update) {
    cases.push_back(
        {std::move(name), "f32", Text({kTouched, kRowWidth}), Ceiling::kMemory,
         4 * tensors * static_cast<double>(kTouched * kRowWidth), [=](Memory& memory) -> Call {
           Operands o(memory);
           OptimizerConfig config;
           config.adam_lr = 1e-3;
           TableSchedule schedule(config, kSteps, &memory);
           const Shape table = {kRows, kRowWidth};
           const TableState state = {o.Normal(DType::kF32, table), o.Normal(DType::kF32, table),
                                     o.Constant(DType::kF32, table, 1),
                                     o.Take(DType::kU32, {kRows})};
           const Tensor rows = o.Take(DType::kU32, {kTouched});
           auto* row = rows.data<uint32_t>();
           for (int64_t i = 0; i < kTouched; ++i) row[i] = static_cast<uint32_t>(i * 8 + i * 5 % 8);
           const auto stand_at = [=](int64_t step) {
             for (int64_t i = 0; i < kTouched; ++i)
               state.last.data<uint32_t>()[row[i]] = static_cast<uint32_t>(step);
           };
           if (update) {
             const TableUpdateArgs args = {.state = state,
                                           .rule = schedule.rule(),
                                           .rows = rows,
                                           .gradient = o.Normal(DType::kF32, {kTouched, kRowWidth}),
                                           .clip = {},
                                           .constants = {},
                                           .rate = 1e-3};
             return [=](const Context& c) {
               stand_at(0);
               TableUpdate(c, args);
             };
           }
           const TableReplayArgs args = {state, schedule.rule(), schedule.At(kSteps), rows};
           return [=](const Context& c) {
             stand_at(kSteps - 1);
             TableReplayRows(c, args);
           };
         }});
  };
  // Value and both moments in and out, and the gradient in.
  add("table_replay_rows", 6, false);
  add("table_update", 7, true);
}

void AddProducts(DType act, std::vector<OpCase>& cases) {
  const Ceiling ceiling = act == DType::kBF16 ? Ceiling::kBf16Products : Ceiling::kF32Products;
  const auto add = [&](std::string name, int64_t m, int64_t n, int64_t k, bool trans_a,
                       bool trans_b, DType result) {
    const double flops =
        2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
    cases.push_back({std::move(name), NameOf(act), Text({m, n, k}), ceiling, flops,
                     [=](Memory& memory) -> Call {
                       Operands o(memory);
                       const Shape a = trans_a ? Shape{k, m} : Shape{m, k};
                       const Shape b = trans_b ? Shape{n, k} : Shape{k, n};
                       const MatmulArgs args = {.a = o.Normal(act, a),
                                                .b = o.Normal(act, b),
                                                .c = o.Take(result, {m, n}),
                                                .trans_a = trans_a,
                                                .trans_b = trans_b};
                       return [=](const Context& c) { Matmul(c, args); };
                     }});
  };
  add("matmul_forward", kTokens, kInner, kWidth, false, true, act);
  add("matmul_input_gradient", kTokens, kWidth, kInner, false, false, act);
  add("matmul_weight_gradient", kInner, kWidth, kTokens, true, false, DType::kF32);
  add("matmul_logits", kTileRows, kVocabulary, kWidth, false, true, DType::kF32);

  // Two products forward, five backward, over the lower triangle of each head's scores.
  const double product =
      static_cast<double>(kBatch * kHeads * kLength) * static_cast<double>(kLength * kHeadWidth);
  const Shape q = {kTokens, kHeads, kHeadWidth}, kv = {kTokens, kKvHeads, kHeadWidth};
  const Shape lse = {kBatch, kHeads, kLength};
  const double scale = 1 / std::sqrt(static_cast<double>(kHeadWidth));
  const auto forward = [=](Operands& o) {
    o.memory().NeedScratch(AttentionScratch(kBatch, kLength, kHeads, kKvHeads, kHeadWidth, act));
    return AttentionForwardArgs{.q = o.Normal(act, q),
                                .k = o.Normal(act, kv),
                                .v = o.Normal(act, kv),
                                .segments = o.Take(DType::kI32, {kBatch, kLength}),
                                .o = o.Take(act, q),
                                .lse = o.Constant(DType::kF32, lse, 8),
                                .scale = scale};
  };
  const std::string shape = Text({kBatch, kLength, kHeads, kHeadWidth});
  cases.push_back(
      {"attention_forward", NameOf(act), shape, ceiling, 2 * product, [=](Memory& memory) -> Call {
         Operands o(memory);
         const AttentionForwardArgs args = forward(o);
         return [=](const Context& c) { AttentionForward(c, args); };
       }});
  cases.push_back(
      {"attention_backward", NameOf(act), shape, ceiling, 5 * product, [=](Memory& memory) -> Call {
         Operands o(memory);
         const AttentionForwardArgs f = forward(o);
         const AttentionBackwardArgs args = {.dout = o.Normal(act, q),
                                             .q = f.q,
                                             .k = f.k,
                                             .v = f.v,
                                             .segments = f.segments,
                                             .o = f.o,
                                             .lse = f.lse,
                                             .dq = o.Take(act, q),
                                             .dk = o.Take(act, kv),
                                             .dv = o.Take(act, kv),
                                             .scale = scale};
         return [=](const Context& c) { AttentionBackward(c, args); };
       }});
}

}  // namespace

std::vector<OpCase> OpCases() {
  std::vector<OpCase> cases;
  AddTableOps(cases);
  AddTableRowOps(cases);
  AddActivationOps(DType::kF32, cases);
  AddActivationOps(DType::kBF16, cases);
  AddOptimizerOps(cases);
  AddProducts(DType::kF32, cases);
  AddProducts(DType::kBF16, cases);
  return cases;
}

}  // namespace overtok

// Products of blocks, of the head and of Newton-Schulz, and attention.
#include <cmath>
#include <utility>

#include "core/ops/kernels.h"
#include "tools/op_cases.h"

namespace overtok {
namespace {

struct Product {
  std::string name;
  int64_t m, n, k;
  bool trans_a, trans_b;
  DType result;
  bool accumulate = false;
  int64_t stack = 0;  // 0: one product
};

void Add(DType act, const Product& p, std::vector<OpCase>* cases) {
  const auto shape = [&](int64_t rows, int64_t columns) {
    return p.stack > 0 ? Shape{p.stack, rows, columns} : Shape{rows, columns};
  };
  const Shape a = p.trans_a ? shape(p.k, p.m) : shape(p.m, p.k);
  const Shape b = p.trans_b ? shape(p.n, p.k) : shape(p.k, p.n);
  const Shape c = shape(p.m, p.n);
  const Shape told = p.stack > 0 ? Shape{p.stack, p.m, p.n, p.k} : Shape{p.m, p.n, p.k};
  cases->push_back({p.name, NameOf(act), told.ToString(), [=](Operands& o) -> OpCall {
                      const MatmulArgs args = {.a = o.Normal(act, a),
                                               .b = o.Normal(act, b),
                                               .c = o.Take(p.result, c),
                                               .trans_a = p.trans_a,
                                               .trans_b = p.trans_b,
                                               .accumulate = p.accumulate};
                      return {[=](const Context& context) { Matmul(context, args); }};
                    }});
}

void AddAttention(const OpShapes& s, DType act, std::vector<OpCase>* cases) {
  const Shape q = {s.tokens(), s.heads, s.head_width}, kv = {s.tokens(), s.kv_heads, s.head_width};
  const Shape lse = {s.batch, s.heads, s.length};
  const double scale = 1 / std::sqrt(static_cast<double>(s.head_width));
  const auto forward = [=](Operands& o) {
    const Device* const device = o.memory().device();
    o.memory().NeedScratch(
        AttentionScratch(s.batch, s.length, s.heads, s.kv_heads, s.head_width, act,
                         device != nullptr ? device->attention() : AttentionKind::kKernels));
    return AttentionForwardArgs{.q = o.Normal(act, q),
                                .k = o.Normal(act, kv),
                                .v = o.Normal(act, kv),
                                .segments = o.Take(DType::kI32, {s.batch, s.length}),
                                .o = o.Take(act, q),
                                .lse = o.Constant(DType::kF32, lse, 8),
                                .scale = scale};
  };
  const std::string shape = Shape({s.batch, s.length, s.heads, s.head_width}).ToString();
  cases->push_back({"attention_forward", NameOf(act), shape, [=](Operands& o) -> OpCall {
                      const AttentionForwardArgs args = forward(o);
                      return {[=](const Context& c) { AttentionForward(c, args); }};
                    }});
  cases->push_back({"attention_backward", NameOf(act), shape, [=](Operands& o) -> OpCall {
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
                      return {[=](const Context& c) { AttentionBackward(c, args); }};
                    }});
}

}  // namespace

void AddProducts(const OpShapes& s, DType act, std::vector<OpCase>* cases) {
  const int64_t t = s.tokens(), d = s.width, m = s.inner;
  const auto add = [&](const Product& product) { Add(act, product, cases); };
  const DType f32 = DType::kF32;
  add({"matmul_query", t, s.heads * s.head_width, d, false, true, act});
  add({"matmul_forward", t, m, d, false, true, act});
  add({"matmul_down", t, d, m, false, true, act});
  add({"matmul_input_gradient", t, d, m, false, false, act});
  add({"matmul_weight_gradient", m, d, t, true, false, f32});
  std::vector<std::pair<int64_t, int64_t>> tiles = {{s.tile_rows, s.vocabulary}};
  if (s.candidates > 0) tiles.emplace_back(s.candidate_rows, s.candidates);
  for (const auto& [rows, classes] : tiles) {
    add({"matmul_logits", rows, classes, d, false, true, f32});
    add({"matmul_hidden_gradient", rows, d, classes, false, false, act});
    add({"matmul_classes_gradient", classes, d, rows, true, false, f32, true});
  }
  for (const DType dtype : s.newton_schulz) {
    if (dtype != act) continue;
    add({"matmul_gram", d, d, m, true, false, act, false, s.layers});
    add({"matmul_gram_squared", d, d, d, false, false, act, false, s.layers});
    add({"matmul_polynomial", m, d, d, false, false, act, false, s.layers});
  }
  AddAttention(s, act, cases);
}

}  // namespace overtok

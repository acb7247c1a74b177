#include "core/ops/work.h"

#include <algorithm>

#include "core/check.h"

namespace overtok {
namespace {

// Each tensor moves once; one that is added to is listed twice. Undefined ones have no bytes.
double Bytes(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors) sum += static_cast<double>(tensor.bytes());
  return sum;
}

Work Pass(std::initializer_list<Tensor> tensors) { return {.bytes = Bytes(tensors)}; }

int64_t InnerSize(const MatmulArgs& args) {
  const int rank = args.a.rank();
  return args.a.dim(args.trans_a ? rank - 2 : rank - 1);
}

// `products`: of [S, S, D] over the causal half, diagonal included.
double AttentionFlops(const Tensor& q, const Tensor& segments, double products) {
  const auto length = static_cast<double>(segments.dim(1));
  return products * static_cast<double>(q.elements()) * (length + 1);
}

// Bytes of what a table has for `rows` of its rows.
double RowBytes(const TableState& state, int64_t rows) {
  return Bytes({state.value, state.m, state.v, state.last}) * static_cast<double>(rows) /
         static_cast<double>(state.value.dim(0));
}

}  // namespace

Work& Work::operator+=(const Work& other) {
  OT_CHECK(kind == other.kind && dtype == other.dtype && tf32 == other.tf32 &&
           head_width == other.head_width);
  flops += other.flops;
  bytes += other.bytes;
  row_bytes += other.row_bytes;
  return *this;
}

Work WorkOf(const FillArgs& a) { return Pass({a.x}); }
Work WorkOf(const CastArgs& a) { return Pass({a.x, a.y}); }
Work WorkOf(const AddArgs& a) { return Pass({a.x, a.y, a.y}); }
Work WorkOf(const MatmulArgs& a) {
  return {.kind = Work::Kind::kProduct,
          .dtype = a.a.dtype(),
          .tf32 = a.tf32,
          .flops = 2.0 * static_cast<double>(a.c.elements()) * static_cast<double>(InnerSize(a)),
          .bytes = Bytes({a.a, a.b, a.c}) + (a.accumulate ? Bytes({a.c}) : 0)};
}
Work WorkOf(const RoundToTF32Args& a) { return Pass({a.x, a.y}); }
Work WorkOf(const RmsNormForwardArgs& a) { return Pass({a.x, a.residual, a.y, a.rstd}); }
Work WorkOf(const RmsNormBackwardArgs& a) {
  return {.bytes = Bytes({a.dy, a.x, a.rstd, a.dx}) + (a.accumulate_dx ? Bytes({a.dx}) : 0)};
}
Work WorkOf(const QkNormRopeForwardArgs& a) { return Pass({a.x, a.y, a.rstd}); }
Work WorkOf(const QkNormRopeBackwardArgs& a) { return Pass({a.dy, a.x, a.rstd, a.dx}); }
Work WorkOf(const AttentionForwardArgs& a) {
  return {.kind = Work::Kind::kAttentionForward,
          .dtype = a.q.dtype(),
          .head_width = a.q.dim(2),
          .flops = AttentionFlops(a.q, a.segments, 2),
          .bytes = Bytes({a.q, a.k, a.v, a.o, a.lse})};
}
Work WorkOf(const AttentionBackwardArgs& a) {
  return {.kind = Work::Kind::kAttentionBackward,
          .dtype = a.q.dtype(),
          .head_width = a.q.dim(2),
          .flops = AttentionFlops(a.q, a.segments, 5),
          .bytes = Bytes({a.dout, a.q, a.k, a.v, a.o, a.lse, a.dq, a.dk, a.dv})};
}
Work WorkOf(const SwiGluForwardArgs& a) { return Pass({a.gate, a.up, a.y}); }
Work WorkOf(const SwiGluBackwardArgs& a) { return Pass({a.dy, a.gate, a.up, a.dgate, a.dup}); }
Work WorkOf(const EmbeddingForwardArgs& a) {
  const auto row = Bytes({a.table}) / static_cast<double>(a.table.dim(0));
  return {.bytes = Bytes({a.ids, a.y}), .row_bytes = row * static_cast<double>(a.ids.elements())};
}
// Positions in the order of their ids, and at most so many rows that are added to.
Work WorkOf(const EmbeddingBackwardArgs& a) {
  const auto row = Bytes({a.dtable}) / static_cast<double>(a.dtable.dim(0));
  const int64_t rows = std::min(a.ids.elements(), a.dtable.dim(0));
  return {.bytes = Bytes({a.ids}),
          .row_bytes = Bytes({a.dy}) + 2 * row * static_cast<double>(rows)};
}
Work WorkOf(const SoftmaxXentArgs& a) { return Pass({a.logits, a.dlogits}); }
Work WorkOf(const SoftmaxShardStatsArgs& a) { return Pass({a.logits}); }
Work WorkOf(const SoftmaxXentShardArgs& a) { return Pass({a.logits, a.dlogits}); }
Work WorkOf(const WeightedSumArgs& a) { return Pass({a.x, a.w}); }
Work WorkOf(const OrderedSumArgs& a) {
  return {.bytes = Bytes({a.out}) * static_cast<double>(a.parts.size() + 1)};
}
Work WorkOf(const CopyRegionArgs& a) { return Pass({a.packed, a.packed}); }
Work WorkOf(const CopyRowsArgs& a) {
  const double moved = 2 * static_cast<double>(RowsOf(a)) * static_cast<double>(RowBytesOf(a));
  if (!a.from_rows.defined() && !a.to_rows.defined()) return {.bytes = moved};
  return {.bytes = Bytes({a.from_rows, a.to_rows}), .row_bytes = moved};
}
Work WorkOf(const RowTreeSumArgs& a) {
  return {.bytes = Bytes({a.order, a.starts, a.out}), .row_bytes = Bytes({a.contributions})};
}
Work WorkOf(const SumSquaresArgs& a) { return Pass({a.x}); }
Work WorkOf(const AddExactArgs& a) {
  return {.bytes = Bytes({a.values, a.words}) + (a.accumulate ? Bytes({a.words}) : 0)};
}
Work WorkOf(const RoundExactArgs& a) { return Pass({a.words, a.out}); }
Work WorkOf(const HaltUnlessFiniteArgs& a) { return Pass({a.x, a.halted}); }
Work WorkOf(const MuonMomentumArgs& a) { return Pass({a.gradient, a.buffer, a.buffer, a.x}); }
Work WorkOf(const NewtonSchulzPolynomialArgs& a) { return Pass({a.x, a.y, a.y}); }
Work WorkOf(const ScaleByNormArgs& a) { return Pass({a.x, a.x}); }
// The sums read w and u, the move reads both and writes w.
Work WorkOf(const HyperballUpdateArgs& a) { return Pass({a.w, a.w, a.w, a.u, a.u}); }
Work WorkOf(const AdamHMomentsArgs& a) { return Pass({a.w, a.gradient, a.m, a.m, a.v, a.v}); }
Work WorkOf(const AdamHMoveArgs& a) { return Pass({a.w, a.w, a.m, a.v}); }
Work WorkOf(const AdamUpdateArgs& a) { return Pass({a.w, a.w, a.gradient, a.m, a.m, a.v, a.v}); }
Work WorkOf(const TableReplayArgs& a) {
  return {.bytes = Bytes({a.rows}), .row_bytes = 2 * RowBytes(a.state, a.rows.elements())};
}
Work WorkOf(const TableLookupArgs& a) {
  return {.bytes = Bytes({a.ids, a.y}), .row_bytes = RowBytes(a.state, a.ids.elements())};
}
Work WorkOf(const TableUpdateArgs& a) {
  return {.bytes = Bytes({a.rows, a.gradient}),
          .row_bytes = 2 * RowBytes(a.state, a.rows.elements())};
}

std::string ShapeOf(const MatmulArgs& args) {
  const int rank = args.a.rank();
  std::string text;
  if (rank == 3) text += std::to_string(args.a.dim(0)) + "*";
  text += std::to_string(args.c.dim(rank - 2)) + "x" + std::to_string(args.c.dim(rank - 1)) + "x" +
          std::to_string(InnerSize(args));
  text += args.trans_a ? " t" : " n";
  text += args.trans_b ? "t" : "n";
  if (args.accumulate) text += " +=";
  return text + (args.tf32 ? " tf32" : "");
}

}  // namespace overtok

#include "core/ops/profile.h"

#include <algorithm>
#include <chrono>
#include <map>

namespace overtok {
namespace {

const Kernels* inner = nullptr;
Kernels wrapped;
std::map<std::string, OpTime> times;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Work {
  bool products;
  double amount;
};

// Each tensor moves once; one that is added to moves twice.
double Bytes(std::initializer_list<Tensor> tensors) {
  double sum = 0;
  for (const Tensor& tensor : tensors) sum += static_cast<double>(tensor.bytes());
  return sum;
}

Work WorkOf(const FillArgs& a) { return {false, Bytes({a.x})}; }
Work WorkOf(const CastArgs& a) { return {false, Bytes({a.x, a.y})}; }
Work WorkOf(const AddArgs& a) { return {false, Bytes({a.x, a.y, a.y})}; }
Work WorkOf(const MatmulArgs& a) {
  const int rank = a.a.rank();
  const int64_t inner_size = a.a.dim(a.trans_a ? rank - 2 : rank - 1);
  return {true, 2.0 * static_cast<double>(a.c.elements()) * static_cast<double>(inner_size)};
}
Work WorkOf(const RmsNormForwardArgs& a) { return {false, Bytes({a.x, a.residual, a.y})}; }
Work WorkOf(const RmsNormBackwardArgs& a) {
  return {false, Bytes({a.dy, a.x, a.dx}) + (a.accumulate_dx ? Bytes({a.dx}) : 0)};
}
Work WorkOf(const QkNormRopeForwardArgs& a) { return {false, Bytes({a.x, a.y})}; }
Work WorkOf(const QkNormRopeBackwardArgs& a) { return {false, Bytes({a.dy, a.x, a.dx})}; }
// The causal half of 2 products of S x S x D forward, 5 backward; document borders are not
// subtracted.
double AttentionFlops(const Tensor& q, const Tensor& segments, double products) {
  const auto length = static_cast<double>(segments.dim(1));
  return products * static_cast<double>(q.elements()) * (length + 1);
}
Work WorkOf(const AttentionForwardArgs& a) { return {true, AttentionFlops(a.q, a.segments, 2)}; }
Work WorkOf(const AttentionBackwardArgs& a) { return {true, AttentionFlops(a.q, a.segments, 5)}; }
Work WorkOf(const SwiGluForwardArgs& a) { return {false, Bytes({a.gate, a.up, a.y})}; }
Work WorkOf(const SwiGluBackwardArgs& a) {
  return {false, Bytes({a.dy, a.gate, a.up, a.dgate, a.dup})};
}
Work WorkOf(const EmbeddingForwardArgs& a) { return {false, 2 * Bytes({a.y})}; }
Work WorkOf(const EmbeddingBackwardArgs& a) { return {false, 3 * Bytes({a.dy})}; }
Work WorkOf(const SoftmaxXentArgs& a) { return {false, Bytes({a.logits, a.dlogits})}; }
Work WorkOf(const SoftmaxShardStatsArgs& a) { return {false, Bytes({a.logits})}; }
Work WorkOf(const SoftmaxXentShardArgs& a) { return {false, Bytes({a.logits, a.dlogits})}; }
Work WorkOf(const WeightedSumArgs& a) { return {false, Bytes({a.x, a.w})}; }
Work WorkOf(const OrderedSumArgs& a) {
  return {false, Bytes({a.out}) * static_cast<double>(a.parts.size() + 1)};
}
Work WorkOf(const SumSquaresArgs& a) { return {false, Bytes({a.x})}; }
Work WorkOf(const MuonMomentumArgs& a) {
  return {false, Bytes({a.gradient, a.buffer, a.buffer, a.x})};
}
Work WorkOf(const NewtonSchulzPolynomialArgs& a) { return {false, Bytes({a.x, a.y, a.y})}; }
Work WorkOf(const ScaleByNormArgs& a) { return {false, Bytes({a.x, a.x})}; }
Work WorkOf(const HyperballUpdateArgs& a) { return {false, Bytes({a.w, a.w, a.w, a.u, a.u})}; }
Work WorkOf(const AdamHMomentsArgs& a) { return {false, 6 * Bytes({a.w})}; }
Work WorkOf(const AdamHMoveArgs& a) { return {false, 4 * Bytes({a.w})}; }
Work WorkOf(const AdamUpdateArgs& a) { return {false, 7 * Bytes({a.w})}; }
Work WorkOf(const CopyRegionArgs& a) { return {false, 2 * Bytes({a.packed})}; }
Work WorkOf(const RowTreeSumArgs& a) { return {false, Bytes({a.contributions, a.out})}; }
// Bytes of value, m and v of `rows` rows.
double RowBytes(const TableState& state, int64_t rows) {
  return Bytes({state.value, state.m, state.v}) * static_cast<double>(rows) /
         static_cast<double>(state.value.dim(0));
}
Work WorkOf(const TableReplayArgs& a) { return {false, 2 * RowBytes(a.state, a.rows.elements())}; }
Work WorkOf(const TableLookupArgs& a) {
  return {false, RowBytes(a.state, a.ids.elements()) + Bytes({a.y})};
}
Work WorkOf(const TableUpdateArgs& a) {
  return {false, 2 * RowBytes(a.state, a.rows.elements()) + Bytes({a.gradient})};
}

template <class Args>
std::string Label(const char* name, const Args& /*args*/) {
  return name;
}
std::string Label(const char* name, const MatmulArgs& args) {
  const int rank = args.a.rank();
  const int64_t inner_size = args.a.dim(args.trans_a ? rank - 2 : rank - 1);
  std::string label = std::string(name) + " ";
  if (rank == 3) label += std::to_string(args.a.dim(0)) + "*";
  label += std::to_string(args.c.dim(rank - 2)) + "x" + std::to_string(args.c.dim(rank - 1)) + "x" +
           std::to_string(inner_size);
  label += args.trans_a ? " t" : " n";
  label += args.trans_b ? "t" : "n";
  return label + (args.accumulate ? " +=" : "");
}

template <auto kMember>
struct Timer {
  static inline const char* name = nullptr;

  template <class Args>
  static void Run(const Context& context, const Args& args) {
    const double start = Now();
    (inner->*kMember)(context, args);
    const double seconds = Now() - start;
    const Work work = WorkOf(args);
    OpTime& time = times[Label(name, args)];
    ++time.calls;
    time.seconds += seconds;
    time.products = work.products;
    time.work += work.amount;
  }
  template <class Args>
  static Kernel<Args> Around(Kernel<Args> kernel) {
    return kernel == nullptr ? nullptr : &Run<Args>;
  }
};

template <auto kMember>
void Install(const char* name) {
  Timer<kMember>::name = name;
  wrapped.*kMember = Timer<kMember>::Around(inner->*kMember);
}

}  // namespace

const Kernels& StartProfile(const Kernels& kernels) {
  inner = &kernels;
  times.clear();
  Install<&Kernels::fill>("fill");
  Install<&Kernels::cast>("cast");
  Install<&Kernels::add>("add");
  Install<&Kernels::matmul>("matmul");
  Install<&Kernels::rms_norm_forward>("rms_norm_forward");
  Install<&Kernels::rms_norm_backward>("rms_norm_backward");
  Install<&Kernels::qk_norm_rope_forward>("qk_norm_rope_forward");
  Install<&Kernels::qk_norm_rope_backward>("qk_norm_rope_backward");
  Install<&Kernels::attention_forward>("attention_forward");
  Install<&Kernels::attention_backward>("attention_backward");
  Install<&Kernels::swiglu_forward>("swiglu_forward");
  Install<&Kernels::swiglu_backward>("swiglu_backward");
  Install<&Kernels::embedding_forward>("embedding_forward");
  Install<&Kernels::embedding_backward>("embedding_backward");
  Install<&Kernels::softmax_xent>("softmax_xent");
  Install<&Kernels::softmax_shard_stats>("softmax_shard_stats");
  Install<&Kernels::softmax_xent_shard>("softmax_xent_shard");
  Install<&Kernels::weighted_sum>("weighted_sum");
  Install<&Kernels::ordered_sum>("ordered_sum");
  Install<&Kernels::copy_region>("copy_region");
  Install<&Kernels::row_tree_sum>("row_tree_sum");
  Install<&Kernels::sum_squares>("sum_squares");
  Install<&Kernels::muon_momentum>("muon_momentum");
  Install<&Kernels::newton_schulz_polynomial>("newton_schulz_polynomial");
  Install<&Kernels::scale_by_norm>("scale_by_norm");
  Install<&Kernels::hyperball_update>("hyperball_update");
  Install<&Kernels::adamh_moments>("adamh_moments");
  Install<&Kernels::adamh_move>("adamh_move");
  Install<&Kernels::adam_update>("adam_update");
  Install<&Kernels::table_replay_rows>("table_replay_rows");
  Install<&Kernels::table_lookup>("table_lookup");
  Install<&Kernels::table_update>("table_update");
  return wrapped;
}

void ResetProfile() { times.clear(); }

std::vector<OpTime> ReadProfile() {
  std::vector<OpTime> out;
  for (const auto& [label, time] : times) {
    out.push_back(time);
    out.back().name = label;
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const OpTime& a, const OpTime& b) { return a.seconds > b.seconds; });
  return out;
}

}  // namespace overtok

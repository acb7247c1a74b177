// The backend boundary: one function pointer per op, filled by each backend (core/cpu/,
// core/cuda/). The entry points in core/ops/*.cc check dtypes, shapes and aliasing and return early
// for empty inputs, so a kernel may assume valid, non-empty arguments. A null pointer means that
// the backend lacks the op; the entry point then aborts naming it.
#pragma once

#include "core/context.h"
#include "core/ops/activation.h"
#include "core/ops/attention.h"
#include "core/ops/copy_region.h"
#include "core/ops/copy_rows.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/exact_sum.h"
#include "core/ops/matmul.h"
#include "core/ops/norm.h"
#include "core/ops/optimizer.h"
#include "core/ops/ordered_sum.h"
#include "core/ops/reduce.h"
#include "core/ops/rope.h"
#include "core/ops/row_tree_sum.h"
#include "core/ops/softmax_xent.h"
#include "core/ops/table.h"

// Every op: its entry point and the kernels' function, its arguments, its place in Kernels. The
// only list: backends declare their functions and fill their tables from it, and so does the
// profile.
#define OT_FOR_EACH_OP(X)                                                         \
  X(Fill, FillArgs, fill)                                                         \
  X(Cast, CastArgs, cast)                                                         \
  X(Add, AddArgs, add)                                                            \
  X(Matmul, MatmulArgs, matmul)                                                   \
  X(RoundToTF32, RoundToTF32Args, round_to_tf32)                                  \
  X(RmsNormForward, RmsNormForwardArgs, rms_norm_forward)                         \
  X(RmsNormBackward, RmsNormBackwardArgs, rms_norm_backward)                      \
  X(QkNormRopeForward, QkNormRopeForwardArgs, qk_norm_rope_forward)               \
  X(QkNormRopeBackward, QkNormRopeBackwardArgs, qk_norm_rope_backward)            \
  X(AttentionForward, AttentionForwardArgs, attention_forward)                    \
  X(AttentionBackward, AttentionBackwardArgs, attention_backward)                 \
  X(SwiGluForward, SwiGluForwardArgs, swiglu_forward)                             \
  X(SwiGluBackward, SwiGluBackwardArgs, swiglu_backward)                          \
  X(EmbeddingForward, EmbeddingForwardArgs, embedding_forward)                    \
  X(EmbeddingBackward, EmbeddingBackwardArgs, embedding_backward)                 \
  X(SoftmaxXent, SoftmaxXentArgs, softmax_xent)                                   \
  X(SoftmaxShardStats, SoftmaxShardStatsArgs, softmax_shard_stats)                \
  X(SoftmaxXentShard, SoftmaxXentShardArgs, softmax_xent_shard)                   \
  X(WeightedSum, WeightedSumArgs, weighted_sum)                                   \
  X(OrderedSum, OrderedSumArgs, ordered_sum)                                      \
  X(CopyRegion, CopyRegionArgs, copy_region)                                      \
  X(CopyRows, CopyRowsArgs, copy_rows)                                            \
  X(RowTreeSum, RowTreeSumArgs, row_tree_sum)                                     \
  X(SumSquares, SumSquaresArgs, sum_squares)                                      \
  X(AddExact, AddExactArgs, add_exact)                                            \
  X(RoundExact, RoundExactArgs, round_exact)                                      \
  X(HaltUnlessFinite, HaltUnlessFiniteArgs, halt_unless_finite)                   \
  X(MuonMomentum, MuonMomentumArgs, muon_momentum)                                \
  X(NewtonSchulzPolynomial, NewtonSchulzPolynomialArgs, newton_schulz_polynomial) \
  X(ScaleByNorm, ScaleByNormArgs, scale_by_norm)                                  \
  X(HyperballUpdate, HyperballUpdateArgs, hyperball_update)                       \
  X(AdamHMoments, AdamHMomentsArgs, adamh_moments)                                \
  X(AdamHMove, AdamHMoveArgs, adamh_move)                                         \
  X(AdamUpdate, AdamUpdateArgs, adam_update)                                      \
  X(TableReplayRows, TableReplayArgs, table_replay_rows)                          \
  X(TableLookup, TableLookupArgs, table_lookup)                                   \
  X(TableUpdate, TableUpdateArgs, table_update)

namespace overtok {

template <class Args>
using Kernel = void (*)(const Context&, const Args&);

struct Kernels {
#define OT_MEMBER(entry, args, member) Kernel<args> member = nullptr;
  OT_FOR_EACH_OP(OT_MEMBER)
#undef OT_MEMBER
};

// A backend's functions, in its own namespace.
#define OT_DECLARE_KERNEL(entry, args, member) void entry(const Context& context, const args&);
// Entries of its table, between the braces of a Kernels.
#define OT_FILL_KERNEL(entry, args, member) .member = entry,

}  // namespace overtok

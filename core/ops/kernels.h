// The backend boundary: one function pointer per op, filled by each backend (core/cpu/kernels.cc;
// core/cuda/ joins here). The entry points in core/ops/*.cc check dtypes, shapes and aliasing and
// return early for empty inputs, so a kernel may assume valid, non-empty arguments. A null pointer
// means that the backend lacks the op; the entry point then aborts naming it.
#pragma once

#include "core/context.h"
#include "core/ops/activation.h"
#include "core/ops/attention.h"
#include "core/ops/copy_region.h"
#include "core/ops/elementwise.h"
#include "core/ops/embedding.h"
#include "core/ops/matmul.h"
#include "core/ops/norm.h"
#include "core/ops/optimizer.h"
#include "core/ops/ordered_sum.h"
#include "core/ops/reduce.h"
#include "core/ops/rope.h"
#include "core/ops/row_tree_sum.h"
#include "core/ops/softmax_xent.h"
#include "core/ops/table.h"

namespace overtok {

template <class Args>
using Kernel = void (*)(const Context&, const Args&);

struct Kernels {
  // elementwise.h
  Kernel<FillArgs> fill = nullptr;
  Kernel<CastArgs> cast = nullptr;
  Kernel<AddArgs> add = nullptr;
  // matmul.h
  Kernel<MatmulArgs> matmul = nullptr;
  // norm.h
  Kernel<RmsNormForwardArgs> rms_norm_forward = nullptr;
  Kernel<RmsNormBackwardArgs> rms_norm_backward = nullptr;
  // rope.h
  Kernel<QkNormRopeForwardArgs> qk_norm_rope_forward = nullptr;
  Kernel<QkNormRopeBackwardArgs> qk_norm_rope_backward = nullptr;
  // attention.h
  Kernel<AttentionForwardArgs> attention_forward = nullptr;
  Kernel<AttentionBackwardArgs> attention_backward = nullptr;
  // activation.h
  Kernel<SwiGluForwardArgs> swiglu_forward = nullptr;
  Kernel<SwiGluBackwardArgs> swiglu_backward = nullptr;
  // embedding.h
  Kernel<EmbeddingForwardArgs> embedding_forward = nullptr;
  Kernel<EmbeddingBackwardArgs> embedding_backward = nullptr;
  // softmax_xent.h
  Kernel<SoftmaxXentArgs> softmax_xent = nullptr;
  Kernel<SoftmaxShardStatsArgs> softmax_shard_stats = nullptr;
  Kernel<SoftmaxXentShardArgs> softmax_xent_shard = nullptr;
  // reduce.h
  Kernel<WeightedSumArgs> weighted_sum = nullptr;
  // ordered_sum.h
  Kernel<OrderedSumArgs> ordered_sum = nullptr;
  // copy_region.h
  Kernel<CopyRegionArgs> copy_region = nullptr;
  // row_tree_sum.h
  Kernel<RowTreeSumArgs> row_tree_sum = nullptr;
  // optimizer.h
  Kernel<SumSquaresArgs> sum_squares = nullptr;
  Kernel<MuonMomentumArgs> muon_momentum = nullptr;
  Kernel<NewtonSchulzPolynomialArgs> newton_schulz_polynomial = nullptr;
  Kernel<ScaleByNormArgs> scale_by_norm = nullptr;
  Kernel<HyperballUpdateArgs> hyperball_update = nullptr;
  Kernel<AdamHMomentsArgs> adamh_moments = nullptr;
  Kernel<AdamHMoveArgs> adamh_move = nullptr;
  Kernel<AdamUpdateArgs> adam_update = nullptr;
  // table.h
  Kernel<TableReplayArgs> table_replay_rows = nullptr;
  Kernel<TableLookupArgs> table_lookup = nullptr;
  Kernel<TableUpdateArgs> table_update = nullptr;
};

}  // namespace overtok

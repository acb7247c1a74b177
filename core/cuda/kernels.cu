#include "core/cuda/kernels.h"

namespace overtok::OT_BACKEND {

const Kernels& CudaKernels() {
  static const Kernels kernels = {
      .fill = Fill,
      .cast = Cast,
      .add = Add,
      .matmul = Matmul,
      .rms_norm_forward = RmsNormForward,
      .rms_norm_backward = RmsNormBackward,
      .qk_norm_rope_forward = QkNormRopeForward,
      .qk_norm_rope_backward = QkNormRopeBackward,
      .attention_forward = AttentionForward,
      .attention_backward = AttentionBackward,
      .swiglu_forward = SwiGluForward,
      .swiglu_backward = SwiGluBackward,
      .embedding_forward = EmbeddingForward,
      .embedding_backward = EmbeddingBackward,
      .softmax_xent = SoftmaxXent,
      .softmax_shard_stats = SoftmaxShardStats,
      .softmax_xent_shard = SoftmaxXentShard,
      .weighted_sum = WeightedSum,
      .ordered_sum = OrderedSum,
      .copy_region = CopyRegion,
      .row_tree_sum = RowTreeSum,
      .sum_squares = SumSquares,
      .muon_momentum = MuonMomentum,
      .newton_schulz_polynomial = NewtonSchulzPolynomial,
      .scale_by_norm = ScaleByNorm,
      .hyperball_update = HyperballUpdate,
      .adamh_moments = AdamHMoments,
      .adamh_move = AdamHMove,
      .adam_update = AdamUpdate,
      .table_replay_rows = TableReplayRows,
      .table_lookup = TableLookup,
      .table_update = TableUpdate,
  };
  return kernels;
}

}  // namespace overtok::OT_BACKEND

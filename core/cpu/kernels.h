// The CPU backend's kernels, one declaration per op; core/cpu/kernels.cc lists them in the table
// that Context carries.
#pragma once

#include "core/ops/kernels.h"

namespace overtok::cpu {

const Kernels& CpuKernels();

void Fill(const Context& context, const FillArgs& args);
void Cast(const Context& context, const CastArgs& args);
void Add(const Context& context, const AddArgs& args);
void Matmul(const Context& context, const MatmulArgs& args);
void RmsNormForward(const Context& context, const RmsNormForwardArgs& args);
void RmsNormBackward(const Context& context, const RmsNormBackwardArgs& args);
void QkNormRopeForward(const Context& context, const QkNormRopeForwardArgs& args);
void QkNormRopeBackward(const Context& context, const QkNormRopeBackwardArgs& args);
void AttentionForward(const Context& context, const AttentionForwardArgs& args);
void AttentionBackward(const Context& context, const AttentionBackwardArgs& args);
void SwiGluForward(const Context& context, const SwiGluForwardArgs& args);
void SwiGluBackward(const Context& context, const SwiGluBackwardArgs& args);
void EmbeddingForward(const Context& context, const EmbeddingForwardArgs& args);
void EmbeddingBackward(const Context& context, const EmbeddingBackwardArgs& args);
void SoftmaxXent(const Context& context, const SoftmaxXentArgs& args);
void SoftmaxShardStats(const Context& context, const SoftmaxShardStatsArgs& args);
void SoftmaxXentShard(const Context& context, const SoftmaxXentShardArgs& args);
void WeightedSum(const Context& context, const WeightedSumArgs& args);
void OrderedSum(const Context& context, const OrderedSumArgs& args);
void CopyRegion(const Context& context, const CopyRegionArgs& args);
void RowTreeSum(const Context& context, const RowTreeSumArgs& args);
void SumSquares(const Context& context, const SumSquaresArgs& args);
void MuonMomentum(const Context& context, const MuonMomentumArgs& args);
void NewtonSchulzPolynomial(const Context& context, const NewtonSchulzPolynomialArgs& args);
void ScaleByNorm(const Context& context, const ScaleByNormArgs& args);
void HyperballUpdate(const Context& context, const HyperballUpdateArgs& args);
void AdamHMoments(const Context& context, const AdamHMomentsArgs& args);
void AdamHMove(const Context& context, const AdamHMoveArgs& args);
void AdamUpdate(const Context& context, const AdamUpdateArgs& args);
void TableReplayRows(const Context& context, const TableReplayArgs& args);
void TableLookup(const Context& context, const TableLookupArgs& args);
void TableUpdate(const Context& context, const TableUpdateArgs& args);

}  // namespace overtok::cpu

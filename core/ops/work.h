// What an op has to do at least: floating-point operations, and bytes that move between memory and
// the processor when every operand is read once and every result written once. The one account that
// benchmarks hold times against and predictions are made of. Nothing is read of a tensor but its
// shape and type.
#pragma once

#include <cstdint>
#include <string>

#include "core/ops/kernels.h"

namespace overtok {

struct Work {
  enum class Kind : uint8_t { kPass, kProduct, kAttentionForward, kAttentionBackward };
  Kind kind = Kind::kPass;
  DType dtype = DType::kF32;  // of the operands of products and attention
  int64_t head_width = 0;     // of attention
  // A product's 2 M N K. Of attention 2 (forward) or 5 (backward) products over the causal half of
  // the scores; borders of documents are not subtracted. 0 of passes.
  double flops = 0;
  double bytes = 0;      // in order
  double row_bytes = 0;  // of single rows that ids name, each as if no cache held it

  bool products() const { return kind != Kind::kPass; }
  double all_bytes() const { return bytes + row_bytes; }
  // Of the same kind.
  Work& operator+=(const Work& other);
};

Work WorkOf(const FillArgs& args);
Work WorkOf(const CastArgs& args);
Work WorkOf(const AddArgs& args);
Work WorkOf(const MatmulArgs& args);
Work WorkOf(const RmsNormForwardArgs& args);
Work WorkOf(const RmsNormBackwardArgs& args);
Work WorkOf(const QkNormRopeForwardArgs& args);
Work WorkOf(const QkNormRopeBackwardArgs& args);
Work WorkOf(const AttentionForwardArgs& args);
Work WorkOf(const AttentionBackwardArgs& args);
Work WorkOf(const SwiGluForwardArgs& args);
Work WorkOf(const SwiGluBackwardArgs& args);
Work WorkOf(const EmbeddingForwardArgs& args);
Work WorkOf(const EmbeddingBackwardArgs& args);
Work WorkOf(const SoftmaxXentArgs& args);
Work WorkOf(const SoftmaxShardStatsArgs& args);
Work WorkOf(const SoftmaxXentShardArgs& args);
Work WorkOf(const WeightedSumArgs& args);
Work WorkOf(const OrderedSumArgs& args);
Work WorkOf(const CopyRegionArgs& args);
Work WorkOf(const RowTreeSumArgs& args);
Work WorkOf(const SumSquaresArgs& args);
Work WorkOf(const MuonMomentumArgs& args);
Work WorkOf(const NewtonSchulzPolynomialArgs& args);
Work WorkOf(const ScaleByNormArgs& args);
Work WorkOf(const HyperballUpdateArgs& args);
Work WorkOf(const AdamHMomentsArgs& args);
Work WorkOf(const AdamHMoveArgs& args);
Work WorkOf(const AdamUpdateArgs& args);
Work WorkOf(const TableReplayArgs& args);
Work WorkOf(const TableLookupArgs& args);
Work WorkOf(const TableUpdateArgs& args);

// "512x32000x256 nt +=": M, N, K with the stack's size in front, transposes, accumulation.
std::string ShapeOf(const MatmulArgs& args);

}  // namespace overtok

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
  bool tf32 = false;          // of products: f32 operands that are TF32 values
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

#define OT_DECLARE_WORK(entry, args, member) Work WorkOf(const args& op);
OT_FOR_EACH_OP(OT_DECLARE_WORK)
#undef OT_DECLARE_WORK

// "512x32000x256 nt += tf32": M, N, K with the stack's size in front, transposes, accumulation,
// TF32.
std::string ShapeOf(const MatmulArgs& args);

}  // namespace overtok

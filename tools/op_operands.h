// Operands of the ops that `overtok bench ops` times, on any device: normal values, ids, constants.
#pragma once

#include <cstdint>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/ops/rope.h"

namespace overtok {

class Operands {
 public:
  // `fill` false: tensors keep what their device gives them, for ops that are only counted.
  Operands(Memory* memory, bool fill) : memory_(*memory), fill_(fill) {}

  // Standard normal values, truncated; beyond 2^18 of them the same again.
  Tensor Normal(DType dtype, Shape shape);
  Tensor Constant(DType dtype, Shape shape, double value);
  // Below `limit`, any order, repeats.
  Tensor Ids(int64_t count, int64_t limit);
  Tensor U32(const std::vector<uint32_t>& values);
  // Zeros.
  Tensor Take(DType dtype, Shape shape);
  RopeTables Tables(int64_t length, int64_t head_width, bool round_to_bf16);
  Memory& memory() { return memory_; }

 private:
  Context context() const {
    return Context(memory_.device() != nullptr ? memory_.device() : CpuDevice());
  }

  Memory& memory_;
  bool fill_;
  uint64_t key_ = 1;
};

}  // namespace overtok

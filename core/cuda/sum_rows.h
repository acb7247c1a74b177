// The second step of gradients of gains: partial sums of blocks of rows (core/ops/blocks.h) into
// one row, in the order of the blocks.
#pragma once

#include <cstdint>

#include "core/cuda/kernel.h"

namespace overtok::OT_BACKEND {

// out[j] = sum over r of partial[r][j], plus out[j] when accumulate. partial: [rows, width].
void SumRows(const Context& context, const float* partial, int64_t rows, int64_t width,
             bool accumulate, float* out);

}  // namespace overtok::OT_BACKEND

// Counter-based random numbers: every draw is a pure function of (key, counter), so tensors come
// out the same under any layout of ranks and any thread count. Philox4x32-10 (Salmon et al. 2011),
// from Random123.
#pragma once

#include <array>
#include <cstdint>

#include "core/tensor.h"

namespace overtok {

// The four words at counter (low, high) under `key`.
std::array<uint32_t, 4> Philox(uint64_t key, uint64_t low, uint64_t high);

// A uniform number in the open interval (0, 1) from 52 of the bits of two words.
double UniformOpen(uint32_t a, uint32_t b);

// Quantile function of the standard normal distribution truncated to [-3, 3], u in (0, 1). The
// normal quantile is algorithm AS 241 (Wichura 1988), relative error about 1e-16. The result's
// standard deviation is 0.986578.
double TruncatedNormal(double u);

// x[i] = scale * TruncatedNormal(u(key, first_index + i)). x: f32.
void FillTruncatedNormal(uint64_t key, int64_t first_index, float scale, const Tensor& x);

}  // namespace overtok

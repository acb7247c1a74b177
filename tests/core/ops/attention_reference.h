// Attention by its definition, in f64: every score, an explicit mask, plain sums. What the tiled op
// is held against; shares no code with it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace overtok::testing {

struct AttentionShape {
  int64_t batch, length, heads, kv_heads, width;
  std::vector<int32_t> segments;  // [batch * length]
  double scale;
};

struct AttentionValues {
  std::vector<double> q, k, v, dout;       // as in core/ops/attention.h
  std::vector<double> o, lse, dq, dk, dv;  // written
};

void ReferenceAttention(const AttentionShape& shape, AttentionValues* values);

}  // namespace overtok::testing

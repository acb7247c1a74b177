#include "tests/core/ops/attention_reference.h"

#include <cmath>

namespace overtok::testing {

void ReferenceAttention(const AttentionShape& shape, AttentionValues* values) {
  const auto [batch, length, heads, kv_heads, width, segments, scale] = shape;
  AttentionValues& x = *values;
  x.o.assign(x.q.size(), 0);
  x.dq.assign(x.q.size(), 0);
  x.dk.assign(x.k.size(), 0);
  x.dv.assign(x.k.size(), 0);
  x.lse.assign(static_cast<size_t>(batch * heads * length), 0);
  const auto at = [&, n = width](int64_t token, int64_t of, int64_t head) {
    return static_cast<size_t>((token * of + head) * n);
  };
  const auto dot = [n = width](const std::vector<double>& a, size_t i, const std::vector<double>& b,
                               size_t j) {
    double sum = 0;
    for (int64_t d = 0; d < n; ++d) {
      sum += a[i + static_cast<size_t>(d)] * b[j + static_cast<size_t>(d)];
    }
    return sum;
  };
  const auto add = [n = width](std::vector<double>& a, size_t i, double factor,
                               const std::vector<double>& b, size_t j) {
    for (int64_t d = 0; d < n; ++d) {
      a[i + static_cast<size_t>(d)] += factor * b[j + static_cast<size_t>(d)];
    }
  };
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t kv = h / (heads / kv_heads);
      for (int64_t i = 0; i < length; ++i) {
        const int64_t query = b * length + i;
        const size_t row = at(query, heads, h);
        std::vector<int64_t> seen;
        std::vector<double> p;
        double largest = -HUGE_VAL, sum = 0;
        for (int64_t j = 0; j < length; ++j) {
          const int64_t key = b * length + j;
          const bool visible =
              j <= i && segments[static_cast<size_t>(key)] == segments[static_cast<size_t>(query)];
          if (!visible) continue;
          seen.push_back(key);
          p.push_back(scale * dot(x.q, row, x.k, at(key, kv_heads, kv)));
          largest = std::max(largest, p.back());
        }
        for (double& score : p) sum += score = std::exp(score - largest);
        x.lse[static_cast<size_t>((b * heads + h) * length + i)] = largest + std::log(sum);
        for (size_t n = 0; n < p.size(); ++n) {
          p[n] /= sum;
          add(x.o, row, p[n], x.v, at(seen[n], kv_heads, kv));
        }
        const double delta = dot(x.o, row, x.dout, row);
        for (size_t n = 0; n < p.size(); ++n) {
          const size_t key = at(seen[n], kv_heads, kv);
          add(x.dv, key, p[n], x.dout, row);
          const double gradient = p[n] * (dot(x.dout, row, x.v, key) - delta) * scale;
          add(x.dq, row, gradient, x.k, key);
          add(x.dk, key, gradient, x.q, row);
        }
      }
    }
  }
}

}  // namespace overtok::testing

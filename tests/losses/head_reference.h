// A linear head with a softmax loss in double, over all logits at once, and small problems for it:
// what the tiled head is held against.
#pragma once

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "losses/linear_cross_entropy.h"

namespace overtok::testing {

// T tokens, d hidden, V classes. The last class and the first are targets too; every fifth weight
// is 0; gradient_weight sums to 1.
struct HeadProblem {
  HeadProblem(int64_t t, int64_t d, int64_t v, float scale);

  int64_t tokens, hidden, classes;
  std::vector<float> h, w, weight, gradient_weight;
  std::vector<uint32_t> targets;
};

struct HeadOptions {
  double z_loss = 0, focal_gamma = 0;
  std::vector<float> bias = {};  // [V], may be -infinity in the dense reference; empty: none
};

struct DenseHead {
  double loss = 0, lse_squared = 0, weight = 0;
  std::vector<double> token_loss, dh, dw;
};
DenseHead ComputeDense(const HeadProblem& p, const HeadOptions& options);

// |a - b| / |b|; NaN anywhere gives NaN.
double Distance(const std::vector<float>& a, const std::vector<double>& b);

struct HeadOutcome {
  LossSums sums;
  std::vector<float> token_loss, dh, dw;
  int64_t tile_rows = 0;
};
// The tiled head in f32 with tiles of 1 MiB, made for `most` classes (at least p's).
HeadOutcome RunTiled(HeadProblem& p, const HeadOptions& options, bool accumulate, bool gradients,
                     int64_t most);

}  // namespace overtok::testing

// Softmax cross-entropy over a linear head, logits = h W^T, in row tiles: each tile's logits become
// its gradient in place and leave as dh and dW in the same pass. [tokens, V] never exists; one tile
// [R, V] does. Returns sums, never means.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

namespace overtok {

// Letters: T tokens of a micro-batch, d hidden, V classes (all of a vocabulary, or the candidates
// of a block), R rows of a tile.
struct LinearCrossEntropyArgs {
  Tensor hidden;           // [T, d] act
  Tensor weight;           // [V, d] act (a parameter's compute tensor, or candidates' rows)
  Tensor bias;             // [V] f32, added to the logits; undefined: nothing is
  Tensor targets;          // [T] u32 below V
  Tensor loss_weight;      // [T] f32, w: weight of each token in the sums
  Tensor gradient_weight;  // [T] f32, w / (global sum of w): what each token's gradient is scaled
                           // by; undefined: no gradients
  Tensor d_hidden;         // [T, d] act, overwritten
  Tensor d_weight;         // [V, d] f32
  bool accumulate_d_weight = false;
  double z_loss = 0;       // coefficient of lse^2
  double focal_gamma = 0;  // loss (1 - p)^gamma * cross-entropy, and its gradient; 0: off
};

struct LossSums {
  double loss = 0;         // sum of w * loss (cross-entropy, or focal loss)
  double lse_squared = 0;  // sum of w * lse^2, reported apart; the z-loss is z_loss times it
  double weight = 0;       // sum of w
};

// A tile of logits of this size keeps the three products long enough to run at full speed, and each
// tile's read and write of dW (2 V d floats) small beside its 6 R V d operations.
inline constexpr int64_t kHeadTileBytes = int64_t{64} << 20;

class LinearCrossEntropy {
 public:
  // For micro-batches of up to `tokens` rows, d hidden, up to V classes in dtype `act`. Takes the
  // tile: as many rows (a multiple of 64, at least that) of V logits as `tile_bytes` of fp32 hold.
  // With fewer classes the same bytes hold more rows.
  LinearCrossEntropy(Memory* memory, int64_t tokens, int64_t hidden, int64_t classes, DType act,
                     int64_t tile_bytes = kHeadTileBytes);

  // Loss and gradients of one micro-batch, or of a part of it. Waits for the device (the sums are
  // read on the host).
  LossSums Run(const Context& context, const LinearCrossEntropyArgs& args);

  // Losses per token of the last Run: [T] f32, nats (evaluation reads them).
  const Tensor& token_losses() const { return loss_; }
  // R with `classes` classes.
  int64_t tile_rows(int64_t classes) const;

 private:
  Tensor logits_;      // [elements of the tile] f32
  Tensor d_logits_;    // the same in act; logits_ itself in f32 runs
  Tensor loss_, lse_;  // [T] f32
  Tensor sums_;        // [3] f64
};

}  // namespace overtok

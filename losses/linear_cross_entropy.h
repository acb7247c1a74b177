// Softmax cross-entropy over a linear head, logits = h W^T, in row tiles: each tile's logits become
// its gradient in place and leave as dh and dW in the same pass. [tokens, V] never exists; one tile
// [R, V] does. Returns sums, never means.
//
// A device with two streams has two tiles: products run on the main stream, and each tile's softmax
// on the side stream beside the products of its neighbours, the next tile's logits and the previous
// one's gradients. Products keep their order, and so all sums their bits.
//
// With a group of ranks the classes are divided among them: every rank is given the same rows and
// its own classes, and returns the same sums; d_hidden is then this rank's part of a sum over the
// group (the caller's), d_weight is complete. Per tile one all-gather of [R, 3] f64 travels, while
// the next tile's logits are multiplied.
#pragma once

#include <array>
#include <cstdint>

#include "core/comm/communicator.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

namespace overtok {

// Letters: T tokens of a micro-batch, d hidden, V classes (all of a vocabulary, or the candidates
// of a block; this rank's of them, possibly none), R rows of a tile.
struct LinearCrossEntropyArgs {
  Tensor hidden;           // [T, d] act
  Tensor weight;           // [V, d] act (a parameter's compute tensor, or candidates' rows)
  Tensor bias;             // [V] f32, added to the logits; undefined: nothing is
  Tensor targets;          // [T] u32 below V; kNoRow where another rank of the group has it (all
                           // have kNoRow: an infinite loss, for tokens of weight 0 only)
  Tensor loss_weight;      // [T] f32, w: weight of each token in the sums
  Tensor gradient_weight;  // [T] f32, w / (global sum of w): what each token's gradient is scaled
                           // by; undefined: no gradients
  Tensor d_hidden;         // [T, d] act, overwritten
  Tensor d_weight;         // [V, d] f32; V may be 0 with a group
  bool accumulate_d_weight = false;
  double z_loss = 0;       // coefficient of lse^2
  double focal_gamma = 0;  // loss (1 - p)^gamma * cross-entropy, and its gradient; 0: off
};

struct LossSums {
  double loss = 0;         // sum of w * loss (cross-entropy, or focal loss)
  double lse_squared = 0;  // sum of w * lse^2, reported apart; the z-loss is z_loss times it
  double weight = 0;       // sum of w
};

inline constexpr int64_t kLossSums = 3;  // figures of a LossSums, as Run leaves them in its order

// A tile of logits of this size keeps the three products long enough to run at full speed, and each
// tile's read and write of dW (2 V d floats) small beside its 6 R V d operations.
inline constexpr int64_t kHeadTileBytes = int64_t{64} << 20;
// On a GPU, which has 140 operations for each byte of memory and not 10: at V = 128,256 tiles of
// 1,024 rows, with which dW's product takes as long as its memory does; with 128 it would take six
// times as long. Of one tile: where the tokens need several, two are taken, with their bf16
// gradients 1.5 GiB.
inline constexpr int64_t kDeviceHeadTileBytes = int64_t{512} << 20;

// Bytes that each rank of a group of `ranks` sends (Traffic::kLoss) in calls of `tokens` rows in
// all: three f64 a row to every other rank.
inline int64_t LossBytesSent(int64_t tokens, int64_t ranks) { return (ranks - 1) * tokens * 3 * 8; }

class LinearCrossEntropy {
 public:
  // For micro-batches of up to `tokens` rows, d hidden, up to V classes in dtype `act`. Takes the
  // tile: as many rows (a multiple of 64, at least that) of V logits as `tile_bytes` of fp32 hold.
  // 0: kHeadTileBytes, or kDeviceHeadTileBytes where the memory is a device's. With fewer classes
  // the same bytes hold more rows. Where the memory is a device's and the tokens need several
  // tiles, two of this size are taken. `group`: ranks that divide the classes; null or one rank:
  // nobody. With a group, two tiles share `tile_bytes`, each of at most half the tokens, and V is
  // the most classes that any rank has, the same number on all (LargestPart in core/sharding.h).
  LinearCrossEntropy(Memory* memory, int64_t tokens, int64_t hidden, int64_t classes, DType act,
                     Communicator* group = nullptr, int64_t tile_bytes = 0);

  // Loss and gradients of one micro-batch, or of a part of it. sums: [3] f64, written: what
  // LossSums says, in its order. Callers see one stream, the context's, which is the main one.
  // Collective over the group, with equal T and equal row tiles on all ranks: they follow from
  // `most_classes`, the largest V of a rank in this call, which a group needs; without one it is
  // V. A rank without classes
  // (weight: [0, d]) fills d_hidden with zeros.
  void Run(const Context& context, const LinearCrossEntropyArgs& args, const Tensor& sums,
           int64_t most_classes = 0);
  // The same with sums of its own, read at once: waits for the device.
  LossSums RunAndRead(const Context& context, const LinearCrossEntropyArgs& args,
                      int64_t most_classes = 0);

  // Losses per token of the last Run: [T] f32, nats, on the device (evaluation reads them).
  const Tensor& token_losses() const { return loss_; }
  // R with `classes` classes (of the rank that has most), at most.
  int64_t tile_rows(int64_t classes) const;

 private:
  // One tile between its first product and its last.
  struct Tile {
    Tensor logits;     // [elements of the tile] f32
    Tensor d_logits;   // the same in act; undefined in f32 runs: the logits themselves
    Tensor all_stats;  // [ranks * R * 3] f64, of which a tile uses the first
    int64_t begin = 0, rows = 0;
    Request gather;
  };
  // Tile after tile, on one stream.
  void RunWhole(const Context& context, const LinearCrossEntropyArgs& args);
  // On two streams and tiles.
  void RunOverlapped(const Context& context, const LinearCrossEntropyArgs& args);
  void RunDivided(const Context& context, const LinearCrossEntropyArgs& args, int64_t most_classes);
  // Logits of rows [begin, begin + rows) of args.hidden, in `tile`.
  static void Multiply(const Context& context, const LinearCrossEntropyArgs& args, int64_t begin,
                       int64_t rows, Tile* tile);
  // Losses, and the gradient of the logits where one is wanted.
  void Softmax(const Context& context, const LinearCrossEntropyArgs& args, const Tile& tile);
  // Logits, their figures, and the gather of all ranks' figures.
  void StartTile(const Context& context, const LinearCrossEntropyArgs& args, Tile* tile);
  // Losses and gradients, once the figures are here.
  void FinishTile(const Context& context, const LinearCrossEntropyArgs& args, Tile* tile);
  // A tile's logits, and where their gradient goes: [rows, V].
  static Tensor LogitsOf(const Tile& tile, int64_t classes);
  static Tensor DLogitsOf(const Tile& tile, int64_t classes);
  // The gradient of a tile's logits on to its rows of d_hidden, and to d_weight; nothing where no
  // gradient is wanted.
  static void AddGradients(const Context& context, const LinearCrossEntropyArgs& args,
                           const Tile& tile);

  Communicator* group_ = nullptr;  // null: the classes are not divided
  int64_t most_rows_ = 0;          // of a tile, however few the classes
  // The second with a group, whose tiles share d_logits, or with a second stream; else undefined.
  std::array<Tile, 2> tiles_;
  Tensor loss_, lse_;  // [T] f32
  Tensor sums_;        // [3] f64
};

}  // namespace overtok

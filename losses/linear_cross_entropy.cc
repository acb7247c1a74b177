#include "losses/linear_cross_entropy.h"

#include <algorithm>
#include <utility>

#include "core/ops/matmul.h"
#include "core/ops/reduce.h"
#include "core/ops/softmax_xent.h"

namespace overtok {
namespace {

constexpr int64_t kRowMultiple = 64;
constexpr int64_t kStats = 3;  // figures of a row

// Rows of `classes` logits in a tile of `elements`: all tokens if they fit; else a multiple of 64,
// at least that.
int64_t TileRows(int64_t tokens, int64_t classes, int64_t elements) {
  const int64_t fit = elements / classes;
  return fit >= tokens ? tokens
                       : std::min(tokens, std::max(fit / kRowMultiple, int64_t{1}) * kRowMultiple);
}

// Rows of half the tokens, so that there are two tiles, one that is multiplied while the other's
// figures travel; not less than a tile's least.
int64_t HalfOf(int64_t tokens) {
  const int64_t half = (tokens + 1) / 2;
  return std::min(tokens, (half + kRowMultiple - 1) / kRowMultiple * kRowMultiple);
}

// The beginning of a flat buffer as a matrix.
Tensor Matrix(const Tensor& buffer, int64_t rows, int64_t columns) {
  return buffer.Rows(0, rows * columns).Reshape({rows, columns});
}

}  // namespace

LinearCrossEntropy::LinearCrossEntropy(Memory* memory, int64_t tokens, int64_t hidden,
                                       int64_t classes, DType act, Communicator* group,
                                       int64_t tile_bytes)
    : group_(group != nullptr && group->size() > 1 ? group : nullptr) {
  OT_CHECK(hidden > 0 && classes > 0 && tokens > 0);
  if (tile_bytes == 0)
    tile_bytes = memory->device() != nullptr ? kDeviceHeadTileBytes : kHeadTileBytes;
  most_rows_ = group_ == nullptr ? tokens : HalfOf(tokens);
  const int64_t shares = group_ == nullptr ? 1 : 2;
  const int64_t rows = TileRows(most_rows_, classes, tile_bytes / shares / SizeOf(DType::kF32));
  const bool overlapped = memory->device() != nullptr && rows < tokens;
  const int64_t tiles = group_ != nullptr || overlapped ? 2 : 1;
  const int64_t elements = rows * classes;
  const auto take = [&](const char* name, DType dtype, int64_t count) {
    return memory->Take(Purpose::kHead, name, dtype, {count});
  };
  for (int64_t i = 0; i < tiles; ++i) {
    Tile& tile = tiles_[static_cast<size_t>(i)];
    tile.logits = take("head.logits", DType::kF32, elements);
    if (group_ != nullptr) {
      tile.all_stats = take("head.stats", DType::kF64, group_->size() * most_rows_ * kStats);
    }
    if (act == DType::kF32) continue;
    tile.d_logits =
        group_ != nullptr && i > 0 ? tiles_[0].d_logits : take("head.d_logits", act, elements);
  }
  loss_ = take("head.loss", DType::kF32, tokens);
  lse_ = take("head.lse", DType::kF32, tokens);
  sums_ = take("head.sums", DType::kF64, 3);
}

int64_t LinearCrossEntropy::tile_rows(int64_t classes) const {
  return TileRows(most_rows_, classes, tiles_[0].logits.elements());
}

LossSums LinearCrossEntropy::RunAndRead(const Context& context, const LinearCrossEntropyArgs& args,
                                        int64_t most_classes) {
  Run(context, args, sums_, most_classes);
  std::array<double, kLossSums> sums{};
  context.Read(sums_, sums.data());
  return {sums[0], sums[1], sums[2]};
}

void LinearCrossEntropy::Run(const Context& context, const LinearCrossEntropyArgs& args,
                             const Tensor& sums, int64_t most_classes) {
  const int64_t tokens = args.hidden.dim(0);
  OT_CHECK_LE(tokens, loss_.dim(0));
  if (group_ != nullptr) {
    RunDivided(context, args, most_classes);
  } else if (tiles_[1].logits.defined()) {
    RunOverlapped(context, args);
  } else {
    RunWhole(context, args);
  }
  WeightedSum(context, {.x = loss_.Rows(0, tokens), .w = args.loss_weight, .out = sums.Rows(0, 1)});
  WeightedSum(
      context,
      {.x = lse_.Rows(0, tokens), .w = args.loss_weight, .out = sums.Rows(1, 1), .power = 2});
  WeightedSum(context, {.x = Tensor(), .w = args.loss_weight, .out = sums.Rows(2, 1)});
}

void LinearCrossEntropy::RunWhole(const Context& context, const LinearCrossEntropyArgs& args) {
  const int64_t tokens = args.hidden.dim(0), step = tile_rows(args.weight.dim(0));
  Tile& tile = tiles_[0];
  for (int64_t begin = 0; begin < tokens; begin += step) {
    Multiply(context, args, begin, std::min(step, tokens - begin), &tile);
    Softmax(context, args, tile);
    AddGradients(context, args, tile);
  }
}

// Main stream:  L0  L1  G0  L2  G1  L3  G2 ...   L: logits, G: gradients, of one tile
// side stream:      S0  S1......S2......         S: softmax
// Softmax i waits for logits i, and with them, as products run in order, for gradients i - 2, the
// last to read its tile. Gradients i wait for softmax i, but not for i + 1, which is not asked for
// yet, and with them logits i + 2, which take its place.
void LinearCrossEntropy::RunOverlapped(const Context& context, const LinearCrossEntropyArgs& args) {
  OT_CHECK(context.stream_name() == StreamName::kMain);
  const int64_t tokens = args.hidden.dim(0), step = tile_rows(args.weight.dim(0));
  const Context side = context.Side();
  const auto start = [&](int64_t begin, Tile* tile) {
    Multiply(context, args, begin, std::min(step, tokens - begin), tile);
  };
  Tile *tile = &tiles_[0], *next = &tiles_[1];
  start(0, tile);
  side.Follow(context);
  Softmax(side, args, *tile);
  for (int64_t begin = 0; begin < tokens; begin += step) {
    const bool more = begin + step < tokens;
    if (more) start(begin + step, next);
    context.Follow(side);
    if (more) {
      side.Follow(context);
      Softmax(side, args, *next);
    }
    AddGradients(context, args, *tile);
    std::swap(tile, next);
  }
}

void LinearCrossEntropy::Multiply(const Context& context, const LinearCrossEntropyArgs& args,
                                  int64_t begin, int64_t rows, Tile* tile) {
  tile->begin = begin;
  tile->rows = rows;
  const int64_t classes = args.weight.dim(0);
  OT_CHECK_LE(rows * classes, tile->logits.elements()) << "more classes than the head was made for";
  Matmul(context, {.a = args.hidden.Rows(begin, rows),
                   .b = args.weight,
                   .c = LogitsOf(*tile, classes),
                   .trans_b = true});
}

void LinearCrossEntropy::Softmax(const Context& context, const LinearCrossEntropyArgs& args,
                                 const Tile& tile) {
  const int64_t begin = tile.begin, rows = tile.rows, classes = args.weight.dim(0);
  const bool gradients = args.gradient_weight.defined();
  SoftmaxXentArgs softmax;
  softmax.logits = LogitsOf(tile, classes);
  softmax.targets = args.targets.Rows(begin, rows);
  softmax.weight = (gradients ? args.gradient_weight : args.loss_weight).Rows(begin, rows);
  if (gradients) softmax.dlogits = DLogitsOf(tile, classes);
  softmax.loss = loss_.Rows(begin, rows);
  softmax.lse = lse_.Rows(begin, rows);
  softmax.z_loss = args.z_loss;
  softmax.bias = args.bias;
  softmax.focal_gamma = args.focal_gamma;
  SoftmaxXent(context, softmax);
}

void LinearCrossEntropy::RunDivided(const Context& context, const LinearCrossEntropyArgs& args,
                                    int64_t most_classes) {
  const int64_t tokens = args.hidden.dim(0), classes = args.weight.dim(0);
  OT_CHECK(most_classes >= 1 && classes <= most_classes)
      << classes << " classes of this rank, " << most_classes << " at most on any";
  const int64_t step = std::min(tile_rows(most_classes), HalfOf(tokens));
  OT_CHECK_LE(step * most_classes, tiles_[0].logits.elements())
      << "more classes than the head was made for";
  Tile* open = nullptr;
  for (int64_t begin = 0, i = 0; begin < tokens; begin += step, ++i) {
    Tile* tile = &tiles_[static_cast<size_t>(i % 2)];
    tile->begin = begin;
    tile->rows = std::min(step, tokens - begin);
    StartTile(context, args, tile);
    if (open != nullptr) FinishTile(context, args, open);
    open = tile;
  }
  if (open != nullptr) FinishTile(context, args, open);
}

void LinearCrossEntropy::StartTile(const Context& context, const LinearCrossEntropyArgs& args,
                                   Tile* tile) {
  const int64_t rows = tile->rows;
  Multiply(context, args, tile->begin, rows, tile);
  const Tensor all = Matrix(tile->all_stats, group_->size() * rows, kStats);
  const Tensor mine = all.Rows(group_->rank() * rows, rows);
  SoftmaxShardStats(context, {.logits = LogitsOf(*tile, args.weight.dim(0)),
                              .targets = args.targets.Rows(tile->begin, rows),
                              .bias = args.bias,
                              .stats = mine});
  tile->gather =
      group_->StartAllGather(mine, all.Reshape({group_->size(), rows, kStats}), Traffic::kLoss);
}

void LinearCrossEntropy::FinishTile(const Context& context, const LinearCrossEntropyArgs& args,
                                    Tile* tile) {
  const int64_t begin = tile->begin, rows = tile->rows, classes = args.weight.dim(0);
  const bool gradients = args.gradient_weight.defined();
  SoftmaxXentShardArgs softmax;
  softmax.logits = LogitsOf(*tile, classes);
  softmax.targets = args.targets.Rows(begin, rows);
  softmax.weight = (gradients ? args.gradient_weight : args.loss_weight).Rows(begin, rows);
  if (gradients) softmax.dlogits = DLogitsOf(*tile, classes);
  softmax.loss = loss_.Rows(begin, rows);
  softmax.lse = lse_.Rows(begin, rows);
  softmax.all_stats = Matrix(tile->all_stats, group_->size() * rows, kStats)
                          .Reshape({group_->size(), rows, kStats});
  softmax.z_loss = args.z_loss;
  softmax.bias = args.bias;
  softmax.focal_gamma = args.focal_gamma;
  tile->gather.Wait();
  SoftmaxXentShard(context, softmax);
  AddGradients(context, args, *tile);
}

Tensor LinearCrossEntropy::LogitsOf(const Tile& tile, int64_t classes) {
  return Matrix(tile.logits, tile.rows, classes);
}

Tensor LinearCrossEntropy::DLogitsOf(const Tile& tile, int64_t classes) {
  return Matrix(tile.d_logits.defined() ? tile.d_logits : tile.logits, tile.rows, classes);
}

void LinearCrossEntropy::AddGradients(const Context& context, const LinearCrossEntropyArgs& args,
                                      const Tile& tile) {
  if (!args.gradient_weight.defined()) return;
  const int64_t begin = tile.begin, rows = tile.rows;
  const Tensor dlogits = DLogitsOf(tile, args.weight.dim(0));
  Matmul(context, {.a = dlogits, .b = args.weight, .c = args.d_hidden.Rows(begin, rows)});
  Matmul(context, {.a = dlogits,
                   .b = args.hidden.Rows(begin, rows),
                   .c = args.d_weight,
                   .trans_a = true,
                   .accumulate = args.accumulate_d_weight || begin > 0});
}

}  // namespace overtok

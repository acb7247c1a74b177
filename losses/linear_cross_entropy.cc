#include "losses/linear_cross_entropy.h"

#include <algorithm>

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
  const int64_t tiles = group_ == nullptr ? 1 : 2;
  most_rows_ = group_ == nullptr ? tokens : HalfOf(tokens);
  const int64_t elements =
      TileRows(most_rows_, classes, tile_bytes / tiles / SizeOf(DType::kF32)) * classes;
  const auto take = [&](const char* name, DType dtype, int64_t count) {
    return memory->Take(Purpose::kHead, name, dtype, {count});
  };
  for (int64_t i = 0; i < tiles; ++i) {
    Tile& tile = tiles_[static_cast<size_t>(i)];
    tile.logits = take("head.logits", DType::kF32, elements);
    if (group_ != nullptr) {
      tile.all_stats = take("head.stats", DType::kF64, group_->size() * most_rows_ * kStats);
    }
  }
  if (act != DType::kF32) d_logits_ = take("head.d_logits", act, elements);
  loss_ = take("head.loss", DType::kF32, tokens);
  lse_ = take("head.lse", DType::kF32, tokens);
  sums_ = take("head.sums", DType::kF64, 3);
}

int64_t LinearCrossEntropy::tile_rows(int64_t classes) const {
  return TileRows(most_rows_, classes, tiles_[0].logits.elements());
}

std::vector<LossSums> ReadLossSums(const Context& context, const Tensor& sums) {
  std::vector<double> values(static_cast<size_t>(sums.elements()));
  context.Read(sums, values.data());
  std::vector<LossSums> read;
  for (size_t i = 0; i + 2 < values.size(); i += 3)
    read.push_back({values[i], values[i + 1], values[i + 2]});
  return read;
}

LossSums LinearCrossEntropy::RunAndRead(const Context& context, const LinearCrossEntropyArgs& args,
                                        int64_t most_classes) {
  Run(context, args, sums_, most_classes);
  return ReadLossSums(context, sums_)[0];
}

void LinearCrossEntropy::Run(const Context& context, const LinearCrossEntropyArgs& args,
                             const Tensor& sums, int64_t most_classes) {
  const int64_t tokens = args.hidden.dim(0);
  OT_CHECK_LE(tokens, loss_.dim(0));
  if (group_ == nullptr) {
    RunWhole(context, args);
  } else {
    RunDivided(context, args, most_classes);
  }
  WeightedSum(context, {.x = loss_.Rows(0, tokens), .w = args.loss_weight, .out = sums.Rows(0, 1)});
  WeightedSum(
      context,
      {.x = lse_.Rows(0, tokens), .w = args.loss_weight, .out = sums.Rows(1, 1), .power = 2});
  WeightedSum(context, {.x = Tensor(), .w = args.loss_weight, .out = sums.Rows(2, 1)});
}

void LinearCrossEntropy::RunWhole(const Context& context, const LinearCrossEntropyArgs& args) {
  const int64_t tokens = args.hidden.dim(0), classes = args.weight.dim(0);
  const int64_t tile = tile_rows(classes);
  const bool gradients = args.gradient_weight.defined();
  OT_CHECK_LE(tile * classes, tiles_[0].logits.elements())
      << "more classes than the head was made for";
  for (int64_t begin = 0; begin < tokens; begin += tile) {
    const int64_t rows = std::min(tile, tokens - begin);
    const Tensor logits = Matrix(tiles_[0].logits, rows, classes);
    Matmul(context,
           {.a = args.hidden.Rows(begin, rows), .b = args.weight, .c = logits, .trans_b = true});

    SoftmaxXentArgs softmax;
    softmax.logits = logits;
    softmax.targets = args.targets.Rows(begin, rows);
    softmax.weight = (gradients ? args.gradient_weight : args.loss_weight).Rows(begin, rows);
    if (gradients) softmax.dlogits = DLogits(logits);
    softmax.loss = loss_.Rows(begin, rows);
    softmax.lse = lse_.Rows(begin, rows);
    softmax.z_loss = args.z_loss;
    softmax.bias = args.bias;
    softmax.focal_gamma = args.focal_gamma;
    SoftmaxXent(context, softmax);
    if (gradients) AddGradients(context, args, softmax.dlogits, begin);
  }
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
  const Tensor logits = Matrix(tile->logits, rows, args.weight.dim(0));
  Matmul(
      context,
      {.a = args.hidden.Rows(tile->begin, rows), .b = args.weight, .c = logits, .trans_b = true});
  const Tensor all = Matrix(tile->all_stats, group_->size() * rows, kStats);
  const Tensor mine = all.Rows(group_->rank() * rows, rows);
  SoftmaxShardStats(context, {.logits = logits,
                              .targets = args.targets.Rows(tile->begin, rows),
                              .bias = args.bias,
                              .stats = mine});
  tile->gather =
      group_->StartAllGather(mine, all.Reshape({group_->size(), rows, kStats}), Traffic::kLoss);
}

void LinearCrossEntropy::FinishTile(const Context& context, const LinearCrossEntropyArgs& args,
                                    Tile* tile) {
  const int64_t begin = tile->begin, rows = tile->rows;
  const bool gradients = args.gradient_weight.defined();
  const Tensor logits = Matrix(tile->logits, rows, args.weight.dim(0));
  SoftmaxXentShardArgs softmax;
  softmax.logits = logits;
  softmax.targets = args.targets.Rows(begin, rows);
  softmax.weight = (gradients ? args.gradient_weight : args.loss_weight).Rows(begin, rows);
  if (gradients) softmax.dlogits = DLogits(logits);
  softmax.loss = loss_.Rows(begin, rows);
  softmax.lse = lse_.Rows(begin, rows);
  softmax.all_stats = Matrix(tile->all_stats, group_->size() * rows, kStats)
                          .Reshape({group_->size(), rows, kStats});
  softmax.z_loss = args.z_loss;
  softmax.bias = args.bias;
  softmax.focal_gamma = args.focal_gamma;
  tile->gather.Wait();
  SoftmaxXentShard(context, softmax);
  if (gradients) AddGradients(context, args, softmax.dlogits, begin);
}

Tensor LinearCrossEntropy::DLogits(const Tensor& logits) const {
  return d_logits_.defined() ? Matrix(d_logits_, logits.dim(0), logits.dim(1)) : logits;
}

void LinearCrossEntropy::AddGradients(const Context& context, const LinearCrossEntropyArgs& args,
                                      const Tensor& dlogits, int64_t begin) {
  const int64_t rows = dlogits.dim(0);
  Matmul(context, {.a = dlogits, .b = args.weight, .c = args.d_hidden.Rows(begin, rows)});
  Matmul(context, {.a = dlogits,
                   .b = args.hidden.Rows(begin, rows),
                   .c = args.d_weight,
                   .trans_a = true,
                   .accumulate = args.accumulate_d_weight || begin > 0});
}

}  // namespace overtok

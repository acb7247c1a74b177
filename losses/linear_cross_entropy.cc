#include "losses/linear_cross_entropy.h"

#include <algorithm>

#include "core/ops/matmul.h"
#include "core/ops/reduce.h"
#include "core/ops/softmax_xent.h"

namespace overtok {
namespace {

constexpr int64_t kRowMultiple = 64;

// Rows of `classes` logits in a tile of `elements`: all tokens if they fit; else a multiple of 64,
// at least that.
int64_t TileRows(int64_t tokens, int64_t classes, int64_t elements) {
  const int64_t fit = elements / classes;
  return fit >= tokens ? tokens
                       : std::min(tokens, std::max(fit / kRowMultiple, int64_t{1}) * kRowMultiple);
}

}  // namespace

LinearCrossEntropy::LinearCrossEntropy(Memory* memory, int64_t tokens, int64_t hidden,
                                       int64_t classes, DType act, int64_t tile_bytes) {
  OT_CHECK(hidden > 0 && classes > 0 && tokens > 0);
  const int64_t elements = TileRows(tokens, classes, tile_bytes / SizeOf(DType::kF32)) * classes;
  logits_ = memory->Take(Purpose::kHead, "head.logits", DType::kF32, {elements});
  d_logits_ =
      act == DType::kF32 ? logits_ : memory->Take(Purpose::kHead, "head.d_logits", act, {elements});
  loss_ = memory->Take(Purpose::kHead, "head.loss", DType::kF32, {tokens});
  lse_ = memory->Take(Purpose::kHead, "head.lse", DType::kF32, {tokens});
  sums_ = memory->Take(Purpose::kHead, "head.sums", DType::kF64, {3});
}

int64_t LinearCrossEntropy::tile_rows(int64_t classes) const {
  return TileRows(loss_.dim(0), classes, logits_.elements());
}

LossSums LinearCrossEntropy::Run(const Context& context, const LinearCrossEntropyArgs& args) {
  const int64_t tokens = args.hidden.dim(0), classes = args.weight.dim(0);
  const int64_t tile = tile_rows(classes);
  const bool gradients = args.gradient_weight.defined();
  OT_CHECK_LE(tokens, loss_.dim(0));
  OT_CHECK_LE(tile * classes, logits_.elements()) << "more classes than the head was made for";
  for (int64_t begin = 0; begin < tokens; begin += tile) {
    const int64_t rows = std::min(tile, tokens - begin);
    const auto tile_of = [&](const Tensor& x) {
      return x.Rows(0, rows * classes).Reshape({rows, classes});
    };
    const Tensor hidden = args.hidden.Rows(begin, rows);
    const Tensor logits = tile_of(logits_);
    Matmul(context, {.a = hidden, .b = args.weight, .c = logits, .trans_b = true});

    SoftmaxXentArgs softmax;
    softmax.logits = logits;
    softmax.targets = args.targets.Rows(begin, rows);
    softmax.weight = (gradients ? args.gradient_weight : args.loss_weight).Rows(begin, rows);
    if (gradients) softmax.dlogits = tile_of(d_logits_);
    softmax.loss = loss_.Rows(begin, rows);
    softmax.lse = lse_.Rows(begin, rows);
    softmax.z_loss = args.z_loss;
    softmax.bias = args.bias;
    softmax.focal_gamma = args.focal_gamma;
    SoftmaxXent(context, softmax);
    if (!gradients) continue;

    Matmul(context, {.a = softmax.dlogits, .b = args.weight, .c = args.d_hidden.Rows(begin, rows)});
    Matmul(context, {.a = softmax.dlogits,
                     .b = hidden,
                     .c = args.d_weight,
                     .trans_a = true,
                     .accumulate = args.accumulate_d_weight || begin > 0});
  }
  WeightedSum(context,
              {.x = loss_.Rows(0, tokens), .w = args.loss_weight, .out = sums_.Rows(0, 1)});
  WeightedSum(
      context,
      {.x = lse_.Rows(0, tokens), .w = args.loss_weight, .out = sums_.Rows(1, 1), .power = 2});
  WeightedSum(context, {.x = Tensor(), .w = args.loss_weight, .out = sums_.Rows(2, 1)});
  const double* sums = sums_.data<double>();
  return {sums[0], sums[1], sums[2]};
}

}  // namespace overtok

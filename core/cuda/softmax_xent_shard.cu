// Softmax cross-entropy over classes that are divided among ranks.
//
// First visit: a block for each row sums it as the fused kernel does (core/cuda/softmax_xent.h),
// with the same bits; nothing of [R, V] is stored. Bytes: 4 R V read, one exponential for each
// logit. Second visit, with the figures of all ranks: exponential, scale and store in one pass, a
// block for each row and 16,384 columns of it; every block forms the row's figures from the 24
// bytes of each rank. Bytes: 4 R V read, 2 R V (bf16; f32: 4 R V) written, one exponential for each
// logit. About 4 R V and 2 R V FLOPs beside the exponentials.
#include "core/cuda/kernels.h"
#include "core/cuda/softmax_xent.h"
#include "core/ops/embedding.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr double kNothing = -HUGE_VAL;
constexpr int kThreads = 256;
constexpr int kColumns = 16384;  // of a block in the second visit: four groups of loads

// Index in the row, -1 where another rank has the target.
__device__ __forceinline__ int TargetIn(uint32_t target) {
  return target == kNoRow ? -1 : static_cast<int>(target);
}

template <bool kPacked, bool kBias>
__global__ void __launch_bounds__(kMostSoftmaxThreads)
    ShardStatsKernel(const float* logits, const float* bias, const uint32_t* targets, int classes,
                     int kept_columns, double* stats) {
  Shared shared;
  const RowRoom room = TakeRowRoom(shared, kept_columns);
  const int64_t r = blockIdx.x;
  const LogitRow<kPacked, kBias> row = {logits + r * classes, bias, classes};
  const int target = TargetIn(targets[r]);
  const RowMass mass =
      classes <= kKeptColumns ? MassOfKept(row, target, room) : MassOfLong(row, target, room);
  if (threadIdx.x != 0) return;
  double* out = stats + 3 * r;
  out[0] = static_cast<double>(mass.largest);
  out[1] = mass.others;
  out[2] = target < 0 ? kNothing : static_cast<double>(row.At(target));
}

// The figures of all ranks, by one warp; the same bits on all lanes. all_stats: at the row.
struct AllRanks {
  double shift = kNothing, at_target = kNothing, others = 0;
};
__device__ __forceinline__ AllRanks Gather(const double* all_stats, int64_t ranks, int64_t rows) {
  AllRanks all;
  for (int64_t first = 0; first < ranks; first += kWarp) {
    const int64_t k = first + Lane();
    const double largest = k < ranks ? all_stats[k * 3 * rows] : kNothing;
    const double at_target = k < ranks ? all_stats[k * 3 * rows + 2] : kNothing;
    const double most = WarpMax(largest);
    all.shift = all.shift < most ? most : all.shift;
    for (unsigned have = VoteBallot(at_target != kNothing); have != 0; have &= have - 1)
      all.at_target = Shuffle(at_target, CountBits((have & (~have + 1U)) - 1U));
  }
  for (int64_t first = 0; first < ranks; first += kWarp) {
    const int64_t k = first + Lane();
    double term = 0;
    if (k < ranks) {
      const double* of = all_stats + k * 3 * rows;
      term = of[1] * std::exp(of[0] - all.shift);
    }
    for (int lane = 0; lane < kWarp; ++lane) {  // in the order of ranks
      const double next = Shuffle(term, lane);
      if (first + lane < ranks) all.others += next;
    }
  }
  return all;
}

template <bool kPacked, bool kBias, class S>
__global__ void __launch_bounds__(kThreads)
    SoftmaxXentShardKernel(XentRows<S> rows, const double* all_stats, int64_t ranks) {
  Shared shared;
  auto* scale = shared.Take<RowScale>(1);
  const int64_t r = blockIdx.x;
  const float weight = rows.weight[r];
  if (WarpIndex() == 0) {
    const AllRanks all = Gather(all_stats + 3 * r, ranks, rows.rows);
    if (Lane() == 0) {
      const RowFigures figures =
          FiguresOf(all.shift, all.at_target, all.others, static_cast<double>(weight), rows.z_loss,
                    rows.focal_gamma);
      if (blockIdx.y == 0) {
        rows.loss[r] = static_cast<float>(figures.loss);
        rows.lse[r] = static_cast<float>(figures.lse);
      }
      *scale = ScaleOf(figures, all.shift);
    }
  }
  if (rows.dlogits == nullptr) return;
  SyncThreads();
  const RowScale mine = *scale;

  const LogitRow<kPacked, kBias> row = rows.template Row<kPacked, kBias>(r);
  const int target = TargetIn(rows.targets[r]);
  S* gradient = rows.dlogits + r * row.classes;
  constexpr int kStep = kThreads * kQuad;
  const int begin = static_cast<int>(blockIdx.y) * kColumns;
  const int end = row.classes - begin < kColumns ? row.classes : begin + kColumns;
  for (int base = begin + static_cast<int>(threadIdx.x) * kQuad; base < end;
       base += kFlight * kStep) {
    Pack<float, kQuad> quads[kFlight] = {};
    if (weight != 0)
      for (int k = 0; k < kFlight; ++k) quads[k] = row.Quad(base + k * kStep);
    for (int k = 0; k < kFlight; ++k) {
      const int at = base + k * kStep;
      if (weight != 0) {
        for (int i = 0; i < kQuad; ++i) quads[k].v[i] = expf(quads[k].v[i] - mine.shift);
        quads[k] = GradientQuad(quads[k], mine, at, target);
      }
      StoreQuad<kPacked>(gradient, at, row.classes, quads[k]);
    }
  }
}

}  // namespace

void SoftmaxShardStats(const Context& context, const SoftmaxShardStatsArgs& args) {
  const int64_t classes = args.logits.dim(1);
  const float* none = nullptr;
  ByLogits(args.logits, args.bias, none, [&](auto packed, auto bias) {
    const int64_t kept = KeptColumns(classes, false);
    Launch("SoftmaxShardStats", context,
           {.blocks = args.logits.dim(0),
            .threads = SoftmaxThreads(classes),
            .shared_bytes = RowRoomBytes(kept)},
           ShardStatsKernel<packed.value, bias.value>, args.logits.data<float>(),
           bias.value ? args.bias.data<float>() : none, args.targets.data<uint32_t>(), classes,
           kept, args.stats.data<double>());
  });
}

void SoftmaxXentShard(const Context& context, const SoftmaxXentShardArgs& args) {
  ByGradient(args.dlogits, [&](auto zero) {
    using S = decltype(zero);
    const XentRows<S> rows = XentRowsOf<S>(args);
    ByLogits(args.logits, args.bias, rows.dlogits, [&](auto packed, auto bias) {
      const int64_t parts = rows.dlogits == nullptr ? 1 : CeilDiv(rows.classes, kColumns);
      Launch("SoftmaxXentShard", context,
             {.blocks = rows.rows,
              .threads = kThreads,
              .shared_bytes = SharedBytes<RowScale>(1),
              .blocks_y = parts},
             SoftmaxXentShardKernel<packed.value, bias.value, S>, rows,
             args.all_stats.data<double>(), args.all_stats.dim(0));
    });
  });
}

}  // namespace overtok::OT_BACKEND

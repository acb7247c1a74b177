// Softmax cross-entropy of ready logits: loss and gradient, a block for each row.
//
// Up to 40,960 classes a row is read from memory once: bytes 4 R V read and 2 R V (bf16; f32: 4 R
// V) written, one exponential for each logit. With 147 KB of a row in flight a multiprocessor needs
// about 7,000 cycles for a row (2,300 to load at 64 bytes a cycle, 3,500 for 12 instructions a
// logit, 1,200 to store), which for 132 of them would be 7 TB/s: memory's 4.2 is the bound, since
// blocks do not keep step.
//
// Longer rows are read twice, with the sum formed in one visit from a running reference, and the
// exponential formed again for the gradient. All 132 rows in flight, 68 MB at 128,256 classes, are
// more than the 50 MB of L2. So the first 40,960 logits stay in shared memory, and the second visit
// goes backwards, from what was read last: between the two visits of the logit k from the end lie
// 6 k bytes of a row's traffic, 132 rows' within 40 MB for k up to 50,000. Expected at 128,256:
// 4 + 2 bytes and 4 once more for 29 % of the logits, 7.2 bytes a logit instead of 10. Unmeasured.
//
// FLOPs: about 4 R V beside the exponentials. A row's figures (logarithm, powers, p - 1) are f64,
// by one thread. Rows without weight are not visited twice; their gradient is stored zeros.
#include "core/cuda/kernels.h"
#include "core/cuda/softmax_xent.h"

namespace overtok::OT_BACKEND {
namespace {

template <bool kPacked, bool kBias, class S>
__global__ void __launch_bounds__(kMostSoftmaxThreads)
    SoftmaxXentKernel(XentRows<S> rows, int kept_columns) {
  Shared shared;
  auto* scale = shared.Take<RowScale>(1);
  const RowRoom room = TakeRowRoom(shared, kept_columns);
  const int64_t r = blockIdx.x;
  const LogitRow<kPacked, kBias> row = rows.template Row<kPacked, kBias>(r);
  const auto target = static_cast<int>(rows.targets[r]);
  // Before anything is written: the gradient may take the logits' place.
  const float at_target = threadIdx.x == 0 ? row.At(target) : 0;
  const float weight = rows.weight[r];

  const bool kept = row.classes <= kKeptColumns;
  const RowMass mass = kept ? MassOfKept(row, target, room) : MassOfLong(row, target, room);
  if (threadIdx.x == 0) {
    const double shift = static_cast<double>(mass.largest);
    const RowFigures figures =
        FiguresOf(shift, static_cast<double>(at_target), mass.others, static_cast<double>(weight),
                  rows.z_loss, rows.focal_gamma);
    rows.loss[r] = static_cast<float>(figures.loss);
    rows.lse[r] = static_cast<float>(figures.lse);
    *scale = ScaleOf(figures, shift);
  }
  if (rows.dlogits == nullptr) return;
  SyncThreads();
  const RowScale mine = *scale;

  S* gradient = rows.dlogits + r * row.classes;
  const int step = static_cast<int>(blockDim.x) * kQuad;
  const int first = static_cast<int>(threadIdx.x) * kQuad;
  if (weight == 0) {
    const Pack<float, kQuad> zeros = {};
    for (int at = first; at < row.classes; at += step)
      StoreQuad<kPacked>(gradient, at, row.classes, zeros);
  } else if (kept) {
    for (int at = first; at < row.classes; at += step) {
      const Pack<float, kQuad> exponentials = LoadPack<kQuad>(room.kept + at);
      StoreQuad<kPacked>(gradient, at, row.classes, GradientQuad(exponentials, mine, at, target));
    }
  } else {
    const int groups = (row.classes + kFlight * step - 1) / (kFlight * step);
    for (int base = first + (groups - 1) * kFlight * step; base >= 0; base -= kFlight * step) {
      Pack<float, kQuad> quads[kFlight];
      for (int k = 0; k < kFlight; ++k) {
        const int at = base + k * step;
        quads[k] = at < room.kept_columns ? LoadPack<kQuad>(room.kept + at) : row.Quad(at);
      }
      for (int k = 0; k < kFlight; ++k) {
        const int at = base + k * step;
        for (int i = 0; i < kQuad; ++i) quads[k].v[i] = expf(quads[k].v[i] - mine.shift);
        StoreQuad<kPacked>(gradient, at, row.classes, GradientQuad(quads[k], mine, at, target));
      }
    }
  }
}

}  // namespace

void SoftmaxXent(const Context& context, const SoftmaxXentArgs& args) {
  ByGradient(args.dlogits, [&](auto zero) {
    using S = decltype(zero);
    const XentRows<S> rows = XentRowsOf<S>(args);
    ByLogits(args.logits, args.bias, rows.dlogits, [&](auto packed, auto bias) {
      const int64_t kept = KeptColumns(rows.classes, rows.dlogits != nullptr);
      Launch("SoftmaxXent", context,
             {.blocks = rows.rows,
              .threads = SoftmaxThreads(rows.classes),
              .shared_bytes = SharedBytes<RowScale>(1) + RowRoomBytes(kept)},
             SoftmaxXentKernel<packed.value, bias.value, S>, rows, kept);
    });
  });
}

}  // namespace overtok::OT_BACKEND

// RMSNorm, forward and backward: a row is read twice while it sits in the first-level cache. The
// gain's gradient is summed over blocks of kBlockRows rows (a partial of one row's width per block
// in scratch), then over blocks in order.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/norm.cc"
#include <cmath>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/ops/blocks.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/norm-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

template <class S>
void Forward(const RmsNormForwardArgs& args, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t width = args.x.dim(1);
  const T* gain = args.gain.data<T>();
  T* rstd = args.rstd.data<T>();
  const S* residual = args.residual.defined() ? args.residual.data<S>() : nullptr;
  for (int64_t t = begin; t < end; ++t) {
    const S* x = args.x.data<S>() + t * width;
    S* y = args.y.data<S>() + t * width;
    const T scale = InverseRms<T>(SquareSum(d, x, width), width, args.eps);
    rstd[t] = scale;
    const auto scales = hn::Set(d, scale);
    for (int64_t i = 0; i < width; i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      const auto hat = Intermediate<S>(d, hn::Mul(LoadFirst(d, x + i, count), scales));
      const auto g = Intermediate<S>(d, LoadFirst(d, gain + i, count));
      auto value = hn::Mul(hat, g);
      if (residual != nullptr) {
        const auto r = LoadFirst(d, residual + t * width + i, count);
        value = hn::Add(r, Intermediate<S>(d, value));
      }
      StoreFirst(d, value, y + i, count);
    }
  }
}

// dgain: this block's partial sums, [width], overwritten.
template <class S>
void BackwardBlock(const RmsNormBackwardArgs& args, int64_t begin, int64_t end,
                   ComputeOf<S>* dgain) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t width = args.x.dim(1);
  const T* gain = args.gain.data<T>();
  const T* rstd = args.rstd.data<T>();
  std::fill(dgain, dgain + width, T(0));
  for (int64_t t = begin; t < end; ++t) {
    const S* x = args.x.data<S>() + t * width;
    const S* dy = args.dy.data<S>() + t * width;
    S* dx = args.dx.data<S>() + t * width;
    const auto scales = hn::Set(d, rstd[t]);
    auto dot = hn::Zero(d);
    for (int64_t i = 0; i < width; i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      const auto e = LoadFirst(d, dy + i, count);
      const auto hat = hn::Mul(LoadFirst(d, x + i, count), scales);
      const auto g = Intermediate<S>(d, LoadFirst(d, gain + i, count));
      dot = hn::MulAdd(hn::Mul(e, g), hat, dot);
      const auto sum = hn::MulAdd(e, Intermediate<S>(d, hat), LoadFirst(d, dgain + i, count));
      StoreFirst(d, sum, dgain + i, count);
    }
    const auto mean = hn::Set(d, Sum(d, dot) / static_cast<T>(width));
    for (int64_t i = 0; i < width; i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      const auto hat = hn::Mul(LoadFirst(d, x + i, count), scales);
      const auto g = Intermediate<S>(d, LoadFirst(d, gain + i, count));
      const auto dhat = hn::Mul(LoadFirst(d, dy + i, count), g);
      auto value = hn::Mul(scales, hn::NegMulAdd(hat, mean, dhat));
      if (args.accumulate_dx) value = hn::Add(value, LoadFirst(d, dx + i, count));
      StoreFirst(d, value, dx + i, count);
    }
  }
}

void RmsNormForwardImpl(const RmsNormForwardArgs& args) {
  ByStorage(args.y.dtype(), [&](auto zero) {
    ParallelFor(args.x.dim(0), RowGrain(args.x.dim(1)),
                [&](int64_t begin, int64_t end) { Forward<decltype(zero)>(args, begin, end); });
  });
}

void RmsNormBackwardImpl(const RmsNormBackwardArgs& args, void* scratch) {
  const int64_t rows = args.x.dim(0), width = args.x.dim(1);
  ByStorage(args.dy.dtype(), [&](auto zero) {
    using S = decltype(zero);
    using T = ComputeOf<S>;
    T* partial = static_cast<T*>(scratch);
    ParallelFor(RowBlocks(rows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        BackwardBlock<S>(args, b * kBlockRows, std::min(rows, (b + 1) * kBlockRows),
                         partial + b * width);
    });
    ParallelFor(width, 64, [&](int64_t begin, int64_t end) {
      SumRows(partial, RowBlocks(rows), width, begin, end, args.accumulate_dgain,
              args.dgain.data<T>());
    });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(RmsNormForwardImpl);
HWY_EXPORT(RmsNormBackwardImpl);

void RmsNormForward(const Context& /*context*/, const RmsNormForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(RmsNormForwardImpl)(args);
}
void RmsNormBackward(const Context& context, const RmsNormBackwardArgs& args) {
  void* scratch =
      context.Scratch(RmsNormBackwardScratch(args.x.dim(0), args.x.dim(1), args.x.dtype()));
  HWY_DYNAMIC_DISPATCH(RmsNormBackwardImpl)(args, scratch);
}

}  // namespace overtok::cpu
#endif

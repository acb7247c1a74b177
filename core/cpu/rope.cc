// QK-norm and RoPE in one pass per head: the head is normalised, scaled and rotated while it sits
// in registers and the first-level cache; the normalised head is never stored. With bf16 the norm's
// results are rounded as in norm.cc, the rotation is done in fp32 and rounded once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/rope.cc"
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
void Forward(const QkNormRopeForwardArgs& args, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t heads = args.x.dim(1), width = args.x.dim(2), half = width / 2;
  const int64_t length = args.tables.cos.dim(0);
  const T* gain = args.gain.data<T>();
  for (int64_t t = begin; t < end; ++t) {
    const T* cosine = args.tables.cos.data<T>() + t % length * half;
    const T* sine = args.tables.sin.data<T>() + t % length * half;
    for (int64_t h = 0; h < heads; ++h) {
      const int64_t row = t * heads + h;
      const S* x = args.x.data<S>() + row * width;
      S* y = args.y.data<S>() + row * width;
      const T scale = InverseRms<T>(SquareSum(d, x, width), width, args.eps);
      args.rstd.data<T>()[row] = scale;
      const auto scales = hn::Set(d, scale);
      for (int64_t i = 0; i < half; i += lanes) {
        const int64_t n = std::min(lanes, half - i);
        const auto hat1 = Intermediate<S>(d, hn::Mul(LoadFirst(d, x + i, n), scales));
        const auto hat2 = Intermediate<S>(d, hn::Mul(LoadFirst(d, x + half + i, n), scales));
        const auto g1 = Intermediate<S>(d, LoadFirst(d, gain + i, n));
        const auto g2 = Intermediate<S>(d, LoadFirst(d, gain + half + i, n));
        const auto n1 = Intermediate<S>(d, hn::Mul(hat1, g1));
        const auto n2 = Intermediate<S>(d, hn::Mul(hat2, g2));
        const auto c = LoadFirst(d, cosine + i, n), s = LoadFirst(d, sine + i, n);
        StoreFirst(d, hn::NegMulAdd(n2, s, hn::Mul(n1, c)), y + i, n);
        StoreFirst(d, hn::MulAdd(n1, s, hn::Mul(n2, c)), y + half + i, n);
      }
    }
  }
}

// dgain: this block's partial sums, [D], overwritten.
template <class S>
void BackwardBlock(const QkNormRopeBackwardArgs& args, int64_t begin, int64_t end,
                   ComputeOf<S>* dgain) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t heads = args.x.dim(1), width = args.x.dim(2), half = width / 2;
  const int64_t length = args.tables.cos.dim(0);
  const T* gain = args.gain.data<T>();
  std::fill(dgain, dgain + width, T(0));
  for (int64_t row = begin * heads; row < end * heads; ++row) {
    const int64_t position = row / heads % length;
    const T* cosine = args.tables.cos.data<T>() + position * half;
    const T* sine = args.tables.sin.data<T>() + position * half;
    const S* x = args.x.data<S>() + row * width;
    const S* dy = args.dy.data<S>() + row * width;
    S* dx = args.dx.data<S>() + row * width;
    const auto scales = hn::Set(d, args.rstd.data<T>()[row]);
    auto dot = hn::Zero(d);
    // The rotation undone is cheaper to form twice than to keep.
    for (int64_t i = 0; i < half; i += lanes) {
      const int64_t n = std::min(lanes, half - i);
      const auto c = LoadFirst(d, cosine + i, n), s = LoadFirst(d, sine + i, n);
      const auto e1 = LoadFirst(d, dy + i, n), e2 = LoadFirst(d, dy + half + i, n);
      const auto dn1 = hn::MulAdd(e2, s, hn::Mul(e1, c));
      const auto dn2 = hn::NegMulAdd(e1, s, hn::Mul(e2, c));
      const auto hat1 = hn::Mul(LoadFirst(d, x + i, n), scales);
      const auto hat2 = hn::Mul(LoadFirst(d, x + half + i, n), scales);
      const auto g1 = Intermediate<S>(d, LoadFirst(d, gain + i, n));
      const auto g2 = Intermediate<S>(d, LoadFirst(d, gain + half + i, n));
      dot = hn::MulAdd(hn::Mul(dn1, g1), hat1, dot);
      dot = hn::MulAdd(hn::Mul(dn2, g2), hat2, dot);
      const auto sum1 = LoadFirst(d, dgain + i, n), sum2 = LoadFirst(d, dgain + half + i, n);
      StoreFirst(d, hn::MulAdd(dn1, Intermediate<S>(d, hat1), sum1), dgain + i, n);
      StoreFirst(d, hn::MulAdd(dn2, Intermediate<S>(d, hat2), sum2), dgain + half + i, n);
    }
    const auto mean = hn::Set(d, Sum(d, dot) / static_cast<T>(width));
    for (int64_t i = 0; i < half; i += lanes) {
      const int64_t n = std::min(lanes, half - i);
      const auto c = LoadFirst(d, cosine + i, n), s = LoadFirst(d, sine + i, n);
      const auto e1 = LoadFirst(d, dy + i, n), e2 = LoadFirst(d, dy + half + i, n);
      const auto dn1 = hn::MulAdd(e2, s, hn::Mul(e1, c));
      const auto dn2 = hn::NegMulAdd(e1, s, hn::Mul(e2, c));
      const auto hat1 = hn::Mul(LoadFirst(d, x + i, n), scales);
      const auto hat2 = hn::Mul(LoadFirst(d, x + half + i, n), scales);
      const auto g1 = Intermediate<S>(d, LoadFirst(d, gain + i, n));
      const auto g2 = Intermediate<S>(d, LoadFirst(d, gain + half + i, n));
      const auto dx1 = hn::Mul(scales, hn::NegMulAdd(hat1, mean, hn::Mul(dn1, g1)));
      const auto dx2 = hn::Mul(scales, hn::NegMulAdd(hat2, mean, hn::Mul(dn2, g2)));
      StoreFirst(d, dx1, dx + i, n);
      StoreFirst(d, dx2, dx + half + i, n);
    }
  }
}

void QkNormRopeForwardImpl(const QkNormRopeForwardArgs& args) {
  ByStorage(args.y.dtype(), [&](auto zero) {
    ParallelFor(args.x.dim(0), RowGrain(args.x.dim(1) * args.x.dim(2)),
                [&](int64_t begin, int64_t end) { Forward<decltype(zero)>(args, begin, end); });
  });
}

void QkNormRopeBackwardImpl(const QkNormRopeBackwardArgs& args, void* scratch) {
  const int64_t rows = args.x.dim(0), width = args.x.dim(2);
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

HWY_EXPORT(QkNormRopeForwardImpl);
HWY_EXPORT(QkNormRopeBackwardImpl);

void QkNormRopeForward(const Context& /*context*/, const QkNormRopeForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(QkNormRopeForwardImpl)(args);
}
void QkNormRopeBackward(const Context& context, const QkNormRopeBackwardArgs& args) {
  void* scratch = context.Scratch(
      QkNormRopeBackwardScratch(args.x.dim(0), args.x.dim(1), args.x.dim(2), args.x.dtype()));
  HWY_DYNAMIC_DISPATCH(QkNormRopeBackwardImpl)(args, scratch);
}

}  // namespace overtok::cpu
#endif

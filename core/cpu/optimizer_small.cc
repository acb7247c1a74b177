// Sums of squares, scaling by a norm, and the Newton-Schulz polynomial: one pass each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/optimizer_small.cc"
#include "core/cpu/kernels.h"
#include "core/cpu/optimizer.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/optimizer-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

template <class S>
double SquareRange(const S* x, int64_t begin, int64_t end) {
  const Beside<ComputeOf<S>> d;
  const Wide wide;
  const int64_t lanes = LanesOf(d);
  auto s0 = hn::Zero(wide), s1 = s0, s2 = s0, s3 = s0;
  int64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    const auto v0 = Widen(d, LoadLanes(d, x + i));
    const auto v1 = Widen(d, LoadLanes(d, x + i + lanes));
    const auto v2 = Widen(d, LoadLanes(d, x + i + 2 * lanes));
    const auto v3 = Widen(d, LoadLanes(d, x + i + 3 * lanes));
    s0 = hn::MulAdd(v0, v0, s0);
    s1 = hn::MulAdd(v1, v1, s1);
    s2 = hn::MulAdd(v2, v2, s2);
    s3 = hn::MulAdd(v3, v3, s3);
  }
  for (; i < end; i += lanes) {
    const auto v = Widen(d, LoadFirst(d, x + i, std::min(lanes, end - i)));
    s0 = hn::MulAdd(v, v, s0);
  }
  return Sum(wide, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

void SumSquaresImpl(const SumSquaresArgs& args) {
  const int64_t n = args.x.elements(), block = args.block;
  double* sums = args.sums.data<double>();
  ByStorage(args.x.dtype(), [&](auto zero) {
    using S = decltype(zero);
    const S* x = args.x.data<S>();
    const int64_t grain = std::max<int64_t>(1, kElementGrain / block);
    ParallelFor(args.sums.elements(), grain, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b)
        sums[b] = SquareRange(x, b * block, std::min(n, (b + 1) * block));
    });
  });
}

template <class S>
void DivideRange(S* x, ComputeOf<S> divisor, int64_t begin, int64_t end) {
  const hn::ScalableTag<ComputeOf<S>> d;
  const int64_t lanes = LanesOf(d);
  const auto divisors = hn::Set(d, divisor);
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    StoreFirst(d, hn::Div(LoadFirst(d, x + i, count), divisors), x + i, count);
  }
}

void ScaleByNormImpl(const ScaleByNormArgs& args) {
  const int64_t batch = args.x.dim(0), each = args.x.elements() / batch;
  const double* squares = args.norm_squared.data<double>();
  ByStorage(args.x.dtype(), [&](auto zero) {
    using S = decltype(zero);
    S* x = args.x.data<S>();
    ParallelFor(batch * each, kElementGrain, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin / each; b * each < end; ++b) {
        const double divisor = std::sqrt(squares[b]) + args.eps;
        if (divisor == 0) continue;  // a zero matrix stays zero
        DivideRange<S>(x, static_cast<ComputeOf<S>>(divisor), std::max(begin, b * each),
                       std::min(end, (b + 1) * each));
      }
    });
  });
}

template <class S>
void PolynomialRows(const NewtonSchulzPolynomialArgs& args, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t n = args.x.dim(2);
  const auto b = hn::Set(d, static_cast<T>(args.b)), c = hn::Set(d, static_cast<T>(args.c));
  for (int64_t row = begin; row < end; ++row) {
    const S* x = args.x.data<S>() + row * n;
    S* y = args.y.data<S>() + row * n;
    const int64_t diagonal = row % n;
    // Formed before y is rounded.
    const T at = static_cast<T>(args.c) * static_cast<T>(y[diagonal]) +
                 static_cast<T>(args.b) * static_cast<T>(x[diagonal]) + static_cast<T>(args.a);
    for (int64_t i = 0; i < n; i += lanes) {
      const int64_t count = std::min(lanes, n - i);
      const auto value =
          hn::MulAdd(c, LoadFirst(d, y + i, count), hn::Mul(b, LoadFirst(d, x + i, count)));
      StoreFirst(d, value, y + i, count);
    }
    y[diagonal] = S(at);
  }
}

void NewtonSchulzPolynomialImpl(const NewtonSchulzPolynomialArgs& args) {
  const int64_t n = args.x.dim(2);
  const int64_t grain = std::max<int64_t>(1, kElementGrain / n);
  ByStorage(args.x.dtype(), [&](auto zero) {
    ParallelFor(args.x.dim(0) * n, grain, [&](int64_t begin, int64_t end) {
      PolynomialRows<decltype(zero)>(args, begin, end);
    });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(SumSquaresImpl);
HWY_EXPORT(ScaleByNormImpl);
HWY_EXPORT(NewtonSchulzPolynomialImpl);

void SumSquares(const Context& /*context*/, const SumSquaresArgs& args) {
  HWY_DYNAMIC_DISPATCH(SumSquaresImpl)(args);
}
void ScaleByNorm(const Context& /*context*/, const ScaleByNormArgs& args) {
  HWY_DYNAMIC_DISPATCH(ScaleByNormImpl)(args);
}
void NewtonSchulzPolynomial(const Context& /*context*/, const NewtonSchulzPolynomialArgs& args) {
  HWY_DYNAMIC_DISPATCH(NewtonSchulzPolynomialImpl)(args);
}

}  // namespace overtok::cpu
#endif

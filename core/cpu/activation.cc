// SwiGLU, forward and backward: one pass over the operands, nothing kept. sigmoid(g) = 1 / (1 +
// exp(-g)) in f32 (f64 for f64).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/activation.cc"
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> g) {
  using T = hn::TFromD<D>;
  const auto one = hn::Set(d, T(1));
  return hn::Div(one, hn::Add(one, ExpLanes(d, hn::Neg(g))));
}

template <class S>
void Forward(const SwiGluForwardArgs& args, int64_t begin, int64_t end) {
  const hn::ScalableTag<ComputeOf<S>> d;
  const S* gate = args.gate.data<S>();
  const S* up = args.up.data<S>();
  S* y = args.y.data<S>();
  const int64_t lanes = LanesOf(d);
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto g = LoadFirst(d, gate + i, count);
    const auto silu = hn::Mul(g, Sigmoid(d, g));
    StoreFirst(d, hn::Mul(silu, LoadFirst(d, up + i, count)), y + i, count);
  }
}

template <class S>
void Backward(const SwiGluBackwardArgs& args, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const S* dy = args.dy.data<S>();
  const S* gate = args.gate.data<S>();
  const S* up = args.up.data<S>();
  S* dgate = args.dgate.data<S>();
  S* dup = args.dup.data<S>();
  const int64_t lanes = LanesOf(d);
  const auto one = hn::Set(d, T(1));
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto g = LoadFirst(d, gate + i, count);
    const auto u = LoadFirst(d, up + i, count);
    const auto e = LoadFirst(d, dy + i, count);
    const auto s = Sigmoid(d, g);
    // d silu = s + g s (1 - s)
    const auto slope = hn::MulAdd(hn::Mul(g, s), hn::Sub(one, s), s);
    StoreFirst(d, hn::Mul(hn::Mul(e, u), slope), dgate + i, count);
    StoreFirst(d, hn::Mul(e, hn::Mul(g, s)), dup + i, count);
  }
}

void SwiGluForwardImpl(const SwiGluForwardArgs& args) {
  ByStorage(args.y.dtype(), [&](auto zero) {
    ParallelFor(args.y.elements(), kElementGrain,
                [&](int64_t begin, int64_t end) { Forward<decltype(zero)>(args, begin, end); });
  });
}

void SwiGluBackwardImpl(const SwiGluBackwardArgs& args) {
  ByStorage(args.dy.dtype(), [&](auto zero) {
    ParallelFor(args.dy.elements(), kElementGrain,
                [&](int64_t begin, int64_t end) { Backward<decltype(zero)>(args, begin, end); });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(SwiGluForwardImpl);
HWY_EXPORT(SwiGluBackwardImpl);

void SwiGluForward(const Context& /*context*/, const SwiGluForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(SwiGluForwardImpl)(args);
}
void SwiGluBackward(const Context& /*context*/, const SwiGluBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(SwiGluBackwardImpl)(args);
}

}  // namespace overtok::cpu
#endif

// Vector parts that the optimizer kernels share. Sums of squares run in f64 lanes beside f32
// arithmetic in vectors of half the width, so that every f32 vector promotes to one f64 vector: the
// passes are bound by memory either way.
#if defined(OVERTOK_CORE_CPU_OPTIMIZER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_OPTIMIZER_INL_H_
#undef OVERTOK_CORE_CPU_OPTIMIZER_INL_H_
#else
#define OVERTOK_CORE_CPU_OPTIMIZER_INL_H_
#endif

#include "core/cpu/optimizer.h"
#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

using Wide = hn::ScalableTag<double>;
// Lanes of T (f32 or f64), as many as Wide has.
template <class T>
using Beside = hn::Rebind<T, Wide>;

template <class D>
HWY_INLINE hn::Vec<Wide> Widen([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<hn::TFromD<D>, double>) {
    return v;
  } else {
    return hn::PromoteTo(Wide(), v);
  }
}

// Adam's constants as vectors of T.
template <class D>
struct AdamVectors {
  using T = hn::TFromD<D>;
  hn::Vec<D> clip, beta1, rest1, beta2, rest2, scale1, scale2, eps;

  AdamVectors(D d, const AdamConstants& c, double clip_factor)
      : clip(hn::Set(d, static_cast<T>(clip_factor))),
        beta1(hn::Set(d, static_cast<T>(c.beta1))),
        rest1(hn::Set(d, static_cast<T>(1 - c.beta1))),
        beta2(hn::Set(d, static_cast<T>(c.beta2))),
        rest2(hn::Set(d, static_cast<T>(1 - c.beta2))),
        scale1(hn::Set(d, static_cast<T>(1 / c.correction1))),
        scale2(hn::Set(d, static_cast<T>(1 / c.correction2))),
        eps(hn::Set(d, static_cast<T>(c.eps))) {}

  HWY_INLINE hn::Vec<D> FirstMoment(hn::Vec<D> m, hn::Vec<D> g) const {
    return hn::MulAdd(beta1, m, hn::Mul(rest1, g));
  }
  HWY_INLINE hn::Vec<D> SecondMoment(hn::Vec<D> v, hn::Vec<D> g) const {
    return hn::MulAdd(beta2, v, hn::Mul(rest2, hn::Mul(g, g)));
  }
  // (m / correction1) / (sqrt(v / correction2) + eps), by reciprocals of the corrections. g^2 of
  // |g| below 1e-23 is 0 in f32, and u then |m| / eps, as the formula has it; m = 0 gives 0, never
  // NaN, unless eps rounds to 0 in T.
  HWY_INLINE hn::Vec<D> Update(hn::Vec<D> m, hn::Vec<D> v) const {
    return hn::Div(hn::Mul(m, scale1), hn::Add(hn::Sqrt(hn::Mul(v, scale2)), eps));
  }
};

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

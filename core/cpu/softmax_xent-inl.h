// What the softmax kernels share, per Highway target: the maximum and the sum of exponentials of a
// row, and what a row's loss and gradient are made of. Sums run over strips of kStrip elements and
// then in f64.
#if defined(OVERTOK_CORE_CPU_SOFTMAX_XENT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_SOFTMAX_XENT_INL_H_
#undef OVERTOK_CORE_CPU_SOFTMAX_XENT_INL_H_
#else
#define OVERTOK_CORE_CPU_SOFTMAX_XENT_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

constexpr int64_t kStrip = 2048;

// Lanes i, i + 1, ... of x + bias where there is one; rounded the same way wherever it is formed.
template <bool kBias, class D, class T>
HWY_INLINE hn::Vec<D> Biased(D d, const T* x, [[maybe_unused]] const T* bias, int64_t i) {
  if constexpr (kBias) {
    return hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, bias + i));
  } else {
    return hn::LoadU(d, x + i);
  }
}

template <bool kBias, class T>
T RowMax(const T* x, const T* bias, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto at = [&](int64_t i) { return kBias ? x[i] + bias[i] : x[i]; };
  auto m0 = hn::Set(d, at(0)), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(m0, Biased<kBias>(d, x, bias, i));
    m1 = hn::Max(m1, Biased<kBias>(d, x, bias, i + lanes));
    m2 = hn::Max(m2, Biased<kBias>(d, x, bias, i + 2 * lanes));
    m3 = hn::Max(m3, Biased<kBias>(d, x, bias, i + 3 * lanes));
  }
  T rest = at(0);
  for (; i < n; ++i) rest = std::max(rest, at(i));
  const auto m = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
  return std::max(rest, hn::GetLane(hn::MaxOfLanes(d, m)));
}

// Sum of exp(x + bias - shift); `out` keeps the exponentials if kStore.
template <bool kBias, bool kStore, class T>
double ExpSum(const T* x, const T* bias, int64_t n, T shift, T* out) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto shifts = hn::Set(d, shift);
  double total = 0;
  for (int64_t strip = 0; strip < n; strip += kStrip) {
    const int64_t end = std::min(n, strip + kStrip);
    auto s0 = hn::Zero(d), s1 = hn::Zero(d);
    int64_t i = strip;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      const auto x0 = Biased<kBias>(d, x, bias, i);
      const auto x1 = Biased<kBias>(d, x, bias, i + lanes);
      const auto e0 = ExpLanes(d, hn::Sub(x0, shifts));
      const auto e1 = ExpLanes(d, hn::Sub(x1, shifts));
      if (kStore) {
        hn::StoreU(e0, d, out + i);
        hn::StoreU(e1, d, out + i + lanes);
      }
      s0 = hn::Add(s0, e0);
      s1 = hn::Add(s1, e1);
    }
    for (; i < end; i += lanes) {
      const int64_t count = std::min(lanes, end - i);
      auto v = LoadFirst(d, x + i, count);
      if constexpr (kBias) v = hn::Add(v, LoadFirst(d, bias + i, count));
      const auto e = ExpLanes(d, hn::Sub(v, shifts));
      if (kStore) StoreFirst(d, e, out + i, count);
      const auto in = hn::FirstN(d, static_cast<size_t>(count));
      s0 = hn::Add(s0, hn::IfThenElseZero(in, e));
    }
    total += static_cast<double>(Sum(d, hn::Add(s0, s1)));
  }
  return total;
}

// What focal loss makes of a cross-entropy l, rest = 1 - p: the loss and its derivative by l.
struct Focal {
  double loss, slope;
};
inline Focal FocalOf(double l, double p, double rest, double gamma) {
  if (gamma == 0) return {l, 1};
  const double q = std::max(rest, 1e-12);
  const double factor = std::pow(q, gamma);
  return {factor * l, factor + gamma * (factor / q) * p * l};
}

// What a row comes to.
struct RowFigures {
  double loss, lse;
  double factor;           // gradient of a class other than the target: factor * exp(x - shift)
  double target_gradient;  // without the cancellation of p - 1
};

// shift: the row's maximum; at_target: the target's logit; others: the sum of exp(x - shift) over
// all classes but the target.
inline RowFigures FiguresOf(double shift, double at_target, double others, double weight,
                            double z_loss, double focal_gamma) {
  const double distance = shift - at_target;
  const double own = std::exp(-distance);
  const double sum = others + own;
  const double log_sum = std::log(sum);
  const double lse = shift + log_sum;
  const double loss = others < own ? std::log1p(others / own) : distance + log_sum;
  const double p = own / sum, rest = others / sum;
  const Focal focal = FocalOf(loss, p, rest, focal_gamma);
  const double z = 2 * z_loss * lse;
  return {focal.loss, lse, weight * (focal.slope + z) / sum, weight * (z * p - focal.slope * rest)};
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Softmax cross-entropy of ready logits, a row at a time while the row sits in the second-level
// cache: the maximum; exp(x - maximum) and its sum, kept where the gradient will be (bf16 gradients
// have no room for them: they take the logits' place); the scale. Sums run over strips of kStrip
// elements and then in f64. The target stays out of the sum and is added in f64, so that 1 - p of a
// confident row, and with it loss and p - 1, keep their digits; the target's gradient is formed in
// f64 and rounded once. Other probabilities are within 4 units in the last place (the exponential
// has 2).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/softmax_xent.cc"
#include <cmath>
#include <limits>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/simd-inl.h"
// clang-format on

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

// out = factor * x; out may be x.
template <class S, class T>
void Scale(const T* x, int64_t n, T factor, S* out) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t count = std::min(lanes, n - i);
    StoreFirst(d, hn::Mul(LoadFirst(d, x + i, count), factors), out + i, count);
  }
}

// What focal loss makes of a cross-entropy l, rest = 1 - p: the loss and its derivative by l.
struct Focal {
  double loss, slope;
};
Focal FocalOf(double l, double p, double rest, double gamma) {
  if (gamma == 0) return {l, 1};
  const double q = std::max(rest, 1e-12);
  const double factor = std::pow(q, gamma);
  return {factor * l, factor + gamma * (factor / q) * p * l};
}

// S: storage of the gradient; T: of the logits.
template <bool kBias, class S, class T>
void Row(const SoftmaxXentArgs& args, int64_t r, S* gradient) {
  const int64_t n = args.logits.dim(1);
  T* x = args.logits.data<T>() + r * n;
  const T* bias = kBias ? args.bias.data<T>() : nullptr;
  const auto target = static_cast<int64_t>(args.targets.data<uint32_t>()[r]);
  const double weight = static_cast<double>(args.weight.data<T>()[r]);
  const bool keep = gradient != nullptr && weight != 0;
  const T shift = RowMax<kBias>(x, bias, n);

  const T kept_target = x[target];
  const T at_target = kBias ? kept_target + bias[target] : kept_target;
  x[target] = std::numeric_limits<T>::lowest();  // exponential zero
  T* exponentials = x;
  if constexpr (std::is_same_v<S, T>) {
    if (keep) exponentials = gradient;
  }
  const double others = keep ? ExpSum<kBias, true>(x, bias, n, shift, exponentials)
                             : ExpSum<kBias, false, T>(x, bias, n, shift, nullptr);
  if (!keep || exponentials != x) x[target] = kept_target;

  const double distance = static_cast<double>(shift) - static_cast<double>(at_target);
  const double own = std::exp(-distance);
  const double sum = others + own;
  const double log_sum = std::log(sum);
  const double lse = static_cast<double>(shift) + log_sum;
  const double loss = others < own ? std::log1p(others / own) : distance + log_sum;
  const double p = own / sum, rest = others / sum;
  const Focal focal = FocalOf(loss, p, rest, args.focal_gamma);
  args.loss.data<T>()[r] = static_cast<T>(focal.loss);
  args.lse.data<T>()[r] = static_cast<T>(lse);
  if (gradient == nullptr) return;
  if (weight == 0) {
    std::fill(gradient, gradient + n, S{});
    return;
  }
  const double z = 2 * args.z_loss * lse;
  Scale(exponentials, n, static_cast<T>(weight * (focal.slope + z) / sum), gradient);
  gradient[target] = S(static_cast<T>(weight * (z * p - focal.slope * rest)));
}

void SoftmaxXentImpl(const SoftmaxXentArgs& args) {
  const int64_t rows = args.logits.dim(0), n = args.logits.dim(1);
  const int64_t grain = std::max<int64_t>(1, 4096 / n);
  const auto run = [&](auto gradient_zero, auto logit_zero) {
    using S = decltype(gradient_zero);
    using T = decltype(logit_zero);
    S* gradient = args.dlogits.defined() ? args.dlogits.data<S>() : nullptr;
    ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        S* row = gradient == nullptr ? nullptr : gradient + r * n;
        if (args.bias.defined()) {
          Row<true, S, T>(args, r, row);
        } else {
          Row<false, S, T>(args, r, row);
        }
      }
    });
  };
  if (args.logits.dtype() == DType::kF64) {
    run(double{}, double{});
  } else if (args.dlogits.defined() && args.dlogits.dtype() == DType::kBF16) {
    run(bf16{}, float{});
  } else {
    run(float{}, float{});
  }
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(SoftmaxXentImpl);

void SoftmaxXent(const Context& /*context*/, const SoftmaxXentArgs& args) {
  HWY_DYNAMIC_DISPATCH(SoftmaxXentImpl)(args);
}

}  // namespace overtok::cpu
#endif

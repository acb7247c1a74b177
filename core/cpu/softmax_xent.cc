// Softmax cross-entropy of ready logits, a row at a time while the row sits in the second-level
// cache: the maximum; exp(x - maximum) and its sum, kept where the gradient will be; the scale.
// bf16 gradients have no room for the exponentials, which are then formed again. Sums run over
// strips of kStrip elements and then in f64. The target's entry is weight * (expm1(-loss) + z
// term), formed in f64 and rounded once, so that p - 1 keeps its digits when the row is confident.
// Probabilities are within 4 units in the last place (the exponential has 2).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/softmax_xent.cc"
#include <cmath>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

constexpr int64_t kStrip = 2048;

template <class T>
T RowMax(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  auto m0 = hn::Set(d, x[0]), m1 = m0, m2 = m0, m3 = m0;
  int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + lanes));
    m2 = hn::Max(m2, hn::LoadU(d, x + i + 2 * lanes));
    m3 = hn::Max(m3, hn::LoadU(d, x + i + 3 * lanes));
  }
  T rest = x[0];
  for (; i < n; ++i) rest = std::max(rest, x[i]);
  const auto m = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
  return std::max(rest, hn::GetLane(hn::MaxOfLanes(d, m)));
}

// Sum of exp(x - shift); `out`, when not null, keeps the exponentials.
template <bool kStore, class T>
double ExpSum(const T* x, int64_t n, T shift, T* out) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto shifts = hn::Set(d, shift);
  double total = 0;
  for (int64_t strip = 0; strip < n; strip += kStrip) {
    const int64_t end = std::min(n, strip + kStrip);
    auto s0 = hn::Zero(d), s1 = hn::Zero(d);
    int64_t i = strip;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      const auto e0 = ExpLanes(d, hn::Sub(hn::LoadU(d, x + i), shifts));
      const auto e1 = ExpLanes(d, hn::Sub(hn::LoadU(d, x + i + lanes), shifts));
      if (kStore) {
        hn::StoreU(e0, d, out + i);
        hn::StoreU(e1, d, out + i + lanes);
      }
      s0 = hn::Add(s0, e0);
      s1 = hn::Add(s1, e1);
    }
    for (; i < end; i += lanes) {
      const int64_t count = std::min(lanes, end - i);
      const auto e = ExpLanes(d, hn::Sub(LoadFirst(d, x + i, count), shifts));
      if (kStore) StoreFirst(d, e, out + i, count);
      const auto in = hn::FirstN(d, static_cast<size_t>(count));
      s0 = hn::Add(s0, hn::IfThenElseZero(in, e));
    }
    total += static_cast<double>(Sum(d, hn::Add(s0, s1)));
  }
  return total;
}

template <class T>
void Scale(T* x, int64_t n, T factor) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto factors = hn::Set(d, factor);
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t count = std::min(lanes, n - i);
    StoreFirst(d, hn::Mul(LoadFirst(d, x + i, count), factors), x + i, count);
  }
}

// out = factor * exp(x - shift)
template <class S, class T>
void ScaledExp(const T* x, int64_t n, T shift, T factor, S* out) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto shifts = hn::Set(d, shift), factors = hn::Set(d, factor);
  for (int64_t i = 0; i < n; i += lanes) {
    const int64_t count = std::min(lanes, n - i);
    const auto e = ExpLanes(d, hn::Sub(LoadFirst(d, x + i, count), shifts));
    StoreFirst(d, hn::Mul(e, factors), out + i, count);
  }
}

// S: storage of the gradient; T: of the logits.
template <class S, class T>
void Row(const SoftmaxXentArgs& args, int64_t r, S* gradient) {
  const int64_t n = args.logits.dim(1);
  const T* x = args.logits.data<T>() + r * n;
  const auto target = static_cast<int64_t>(args.targets.data<uint32_t>()[r]);
  const T at_target = x[target];  // read before the gradient takes its place
  const double weight = static_cast<double>(args.weight.data<T>()[r]);
  const T shift = RowMax(x, n);
  const bool keep = gradient != nullptr && weight != 0 && std::is_same_v<S, T>;
  double sum = 0;
  if constexpr (std::is_same_v<S, T>) {
    sum = keep ? ExpSum<true>(x, n, shift, gradient) : ExpSum<false, T>(x, n, shift, nullptr);
  } else {
    sum = ExpSum<false, T>(x, n, shift, nullptr);
  }
  const double log_sum = std::log(sum);
  const double lse = static_cast<double>(shift) + log_sum;
  const double loss = static_cast<double>(shift) - static_cast<double>(at_target) + log_sum;
  args.loss.data<T>()[r] = static_cast<T>(loss);
  args.lse.data<T>()[r] = static_cast<T>(lse);
  if (gradient == nullptr) return;
  if (weight == 0) {
    std::fill(gradient, gradient + n, S{});
    return;
  }
  const double z = 2 * args.z_loss * lse;
  const T factor = static_cast<T>(weight * (1 + z) / sum);
  if constexpr (std::is_same_v<S, T>) {
    Scale(gradient, n, factor);
  } else {
    ScaledExp(x, n, shift, factor, gradient);
  }
  gradient[target] = S(static_cast<T>(weight * (std::expm1(-loss) + z * std::exp(-loss))));
}

void SoftmaxXentImpl(const SoftmaxXentArgs& args) {
  const int64_t rows = args.logits.dim(0), n = args.logits.dim(1);
  const int64_t grain = std::max<int64_t>(1, 4096 / n);
  const auto run = [&](auto gradient_zero, auto logit_zero) {
    using S = decltype(gradient_zero);
    using T = decltype(logit_zero);
    S* gradient = args.dlogits.defined() ? args.dlogits.data<S>() : nullptr;
    ParallelFor(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        Row<S, T>(args, r, gradient == nullptr ? nullptr : gradient + r * n);
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

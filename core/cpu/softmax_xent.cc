// Softmax cross-entropy of ready logits, a row at a time while the row sits in the second-level
// cache: the maximum; exp(x - maximum) and its sum, kept where the gradient will be (bf16 gradients
// have no room for them: they take the logits' place); the scale. The target stays out of the sum
// and is added in f64, so that 1 - p of a confident row, and with it loss and p - 1, keep their
// digits; the target's gradient is formed in f64 and rounded once. Other probabilities are within 4
// units in the last place (the exponential has 2).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/softmax_xent.cc"
#include <limits>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/softmax_xent-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

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

  const RowFigures row = FiguresOf(static_cast<double>(shift), static_cast<double>(at_target),
                                   others, weight, args.z_loss, args.focal_gamma);
  args.loss.data<T>()[r] = static_cast<T>(row.loss);
  args.lse.data<T>()[r] = static_cast<T>(row.lse);
  if (gradient == nullptr) return;
  if (weight == 0) {
    std::fill(gradient, gradient + n, S{});
    return;
  }
  Scale(exponentials, n, static_cast<T>(row.factor), gradient);
  gradient[target] = S(static_cast<T>(row.target_gradient));
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

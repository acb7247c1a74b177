// Softmax cross-entropy over classes that are divided among ranks. First visit: the maximum of a
// row and the sum of its exponentials, nothing is stored. Second visit, with the figures of all
// ranks: exponential, scale and the gradient's store in one pass. The target stays out of the sums,
// as in the fused kernel, whose bits these are on one rank.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/softmax_xent_shard.cc"
#include <cmath>
#include <limits>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/ops/embedding.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/softmax_xent-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

template <bool kBias, class T>
void StatsOfRow(const SoftmaxShardStatsArgs& args, int64_t r) {
  const int64_t n = args.logits.dim(1);
  double* stats = args.stats.data<double>() + 3 * r;
  const uint32_t target = args.targets.data<uint32_t>()[r];
  stats[0] = kNothing;
  stats[1] = 0;
  stats[2] = kNothing;
  if (n == 0) return;
  T* x = args.logits.data<T>() + r * n;
  const T* bias = kBias ? args.bias.data<T>() : nullptr;
  const T shift = RowMax<kBias>(x, bias, n);
  stats[0] = static_cast<double>(shift);
  // Among logits of -infinity x - shift would be no number: from 0 their sum is 0, and NaN's NaN.
  const T from = shift == static_cast<T>(kNothing) ? T{0} : shift;
  if (target == kNoRow) {
    stats[1] = ExpSum<kBias, false, T>(x, bias, n, from, nullptr);
    return;
  }
  const T kept = x[target];
  stats[2] = static_cast<double>(kBias ? kept + bias[target] : kept);
  x[target] = std::numeric_limits<T>::lowest();  // exponential zero
  stats[1] = ExpSum<kBias, false, T>(x, bias, n, from, nullptr);
  x[target] = kept;
}

// out = factor * exp(x + bias - shift); out may be x.
template <bool kBias, class S, class T>
void ScaledExp(const T* x, const T* bias, int64_t n, T shift, T factor, S* out) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const auto shifts = hn::Set(d, shift), factors = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    const auto x0 = Biased<kBias>(d, x, bias, i);
    const auto x1 = Biased<kBias>(d, x, bias, i + lanes);
    const auto e0 = ExpLanes(d, hn::Sub(x0, shifts));
    const auto e1 = ExpLanes(d, hn::Sub(x1, shifts));
    StoreLanes(d, hn::Mul(e0, factors), out + i);
    StoreLanes(d, hn::Mul(e1, factors), out + i + lanes);
  }
  for (; i < n; i += lanes) {
    const int64_t count = std::min(lanes, n - i);
    auto v = LoadFirst(d, x + i, count);
    if constexpr (kBias) v = hn::Add(v, LoadFirst(d, bias + i, count));
    StoreFirst(d, hn::Mul(ExpLanes(d, hn::Sub(v, shifts)), factors), out + i, count);
  }
}

// S: storage of the gradient; T: of the logits.
template <bool kBias, class S, class T>
void ShardRow(const SoftmaxXentShardArgs& args, int64_t r, S* gradient) {
  const int64_t rows = args.logits.dim(0), n = args.logits.dim(1), ranks = args.all_stats.dim(0);
  const double* stats = args.all_stats.data<double>() + 3 * r;
  double shift = kNothing, at_target = kNothing, others = 0;
  for (int64_t k = 0; k < ranks; ++k) {
    const double* of = stats + k * 3 * rows;
    shift = std::max(shift, of[0]);
    if (of[2] != kNothing) at_target = of[2];
  }
  for (int64_t k = 0; k < ranks; ++k) {
    const double* of = stats + k * 3 * rows;
    others += of[1] * std::exp(of[0] - shift);
  }
  const double weight = static_cast<double>(args.weight.data<T>()[r]);
  const RowFigures row = FiguresOf(shift, at_target, others, weight, args.z_loss, args.focal_gamma);
  args.loss.data<T>()[r] = static_cast<T>(row.loss);
  args.lse.data<T>()[r] = static_cast<T>(row.lse);
  if (gradient == nullptr) return;
  if (weight == 0) {
    std::fill(gradient, gradient + n, S{});
    return;
  }
  const T* x = args.logits.data<T>() + r * n;
  const T* bias = kBias ? args.bias.data<T>() : nullptr;
  ScaledExp<kBias>(x, bias, n, static_cast<T>(shift), static_cast<T>(row.factor), gradient);
  const uint32_t target = args.targets.data<uint32_t>()[r];
  if (target != kNoRow) gradient[target] = S(static_cast<T>(row.target_gradient));
}

int64_t GrainOf(int64_t n) { return std::max<int64_t>(1, 4096 / std::max<int64_t>(1, n)); }

void SoftmaxShardStatsImpl(const SoftmaxShardStatsArgs& args) {
  const int64_t rows = args.logits.dim(0);
  const auto run = [&](auto logit_zero) {
    using T = decltype(logit_zero);
    ParallelFor(rows, GrainOf(args.logits.dim(1)), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        if (args.bias.defined()) {
          StatsOfRow<true, T>(args, r);
        } else {
          StatsOfRow<false, T>(args, r);
        }
      }
    });
  };
  if (args.logits.dtype() == DType::kF64) {
    run(double{});
  } else {
    run(float{});
  }
}

void SoftmaxXentShardImpl(const SoftmaxXentShardArgs& args) {
  const int64_t rows = args.logits.dim(0), n = args.logits.dim(1);
  const auto run = [&](auto gradient_zero, auto logit_zero) {
    using S = decltype(gradient_zero);
    using T = decltype(logit_zero);
    S* gradient = args.dlogits.defined() && n > 0 ? args.dlogits.data<S>() : nullptr;
    ParallelFor(rows, GrainOf(n), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        S* row = gradient == nullptr ? nullptr : gradient + r * n;
        if (args.bias.defined()) {
          ShardRow<true, S, T>(args, r, row);
        } else {
          ShardRow<false, S, T>(args, r, row);
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

HWY_EXPORT(SoftmaxShardStatsImpl);
HWY_EXPORT(SoftmaxXentShardImpl);

void SoftmaxShardStats(const Context& /*context*/, const SoftmaxShardStatsArgs& args) {
  HWY_DYNAMIC_DISPATCH(SoftmaxShardStatsImpl)(args);
}

void SoftmaxXentShard(const Context& /*context*/, const SoftmaxXentShardArgs& args) {
  HWY_DYNAMIC_DISPATCH(SoftmaxXentShardImpl)(args);
}

}  // namespace overtok::cpu
#endif

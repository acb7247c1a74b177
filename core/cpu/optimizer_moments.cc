// Muon's momentum and Adam: one pass over gradient and state each; the update of Adam is never
// stored.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/optimizer_moments.cc"
#include "core/cpu/kernels.h"
#include "core/cpu/optimizer.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/optimizer-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// Returns the sum of squares of x before rounding.
template <class S>
double MomentumRange(const MuonMomentumArgs& args, double clip, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const Beside<T> d;
  const Wide wide;
  const int64_t lanes = LanesOf(d);
  const T* gradient = args.gradient.data<T>();
  T* buffer = args.buffer.data<T>();
  S* x = args.x.data<S>();
  const auto factor = hn::Set(d, static_cast<T>(clip));
  const auto mu = hn::Set(d, static_cast<T>(args.momentum));
  auto sum = hn::Zero(wide);
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto g = hn::Mul(LoadFirst(d, gradient + i, count), factor);
    const auto b = hn::MulAdd(mu, LoadFirst(d, buffer + i, count), g);
    const auto value = args.nesterov ? hn::MulAdd(mu, b, g) : b;
    StoreFirst(d, b, buffer + i, count);
    StoreFirst(d, value, x + i, count);
    const auto w = Widen(d, value);
    sum = hn::MulAdd(w, w, sum);
  }
  return Sum(wide, sum);
}

double MuonMomentumImpl(const MuonMomentumArgs& args, void* scratch) {
  const double clip = ClipFactor(args.clip);
  double total = 0;
  ByStorage(args.x.dtype(), [&](auto zero) {
    using S = decltype(zero);
    total =
        SumOverBlocks(args.x.elements(), scratch, [&](int64_t begin, int64_t end, BlockSums& sums) {
          sums.value[0] = MomentumRange<S>(args, clip, begin, end);
        }).value[0];
  });
  return total;
}

template <class T>
void AdamRange(const AdamUpdateArgs& args, double clip, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const AdamVectors<decltype(d)> adam(d, args.constants, clip);
  const auto rate = hn::Set(d, static_cast<T>(args.rate));
  const T* gradient = args.gradient.data<T>();
  T* w = args.w.data<T>();
  T* m = args.m.data<T>();
  T* v = args.v.data<T>();
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto g = hn::Mul(LoadFirst(d, gradient + i, count), adam.clip);
    const auto m1 = adam.FirstMoment(LoadFirst(d, m + i, count), g);
    const auto v1 = adam.SecondMoment(LoadFirst(d, v + i, count), g);
    StoreFirst(d, m1, m + i, count);
    StoreFirst(d, v1, v + i, count);
    const auto u = adam.Update(m1, v1);
    StoreFirst(d, hn::NegMulAdd(rate, u, LoadFirst(d, w + i, count)), w + i, count);
  }
}

void AdamUpdateImpl(const AdamUpdateArgs& args) {
  const double clip = ClipFactor(args.clip);
  ParallelFor(args.w.elements(), kElementGrain, [&](int64_t begin, int64_t end) {
    if (args.w.dtype() == DType::kF64) {
      AdamRange<double>(args, clip, begin, end);
    } else {
      AdamRange<float>(args, clip, begin, end);
    }
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(MuonMomentumImpl);
HWY_EXPORT(AdamUpdateImpl);

void MuonMomentum(const Context& context, const MuonMomentumArgs& args) {
  if (IsHalted(args.clip.halted)) return;
  void* scratch = context.Scratch(OptimizerScratch(args.x.elements()));
  args.norm_squared.data<double>()[0] = HWY_DYNAMIC_DISPATCH(MuonMomentumImpl)(args, scratch);
}
void AdamUpdate(const Context& /*context*/, const AdamUpdateArgs& args) {
  if (!IsHalted(args.clip.halted)) HWY_DYNAMIC_DISPATCH(AdamUpdateImpl)(args);
}

}  // namespace overtok::cpu
#endif

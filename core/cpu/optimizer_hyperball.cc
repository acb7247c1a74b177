// Updates that keep a matrix on its sphere. Pass 1 forms |w|^2, <w, u> and |u|^2 in f64 (AdamH:
// moves the moments too); the norm of w - k u follows from them, so that pass 2 writes the final
// weights. AdamH's u is formed in both passes from the stored moments and never stored; its sums
// leave between the passes, for a parameter may be divided among ranks.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/optimizer_hyperball.cc"
#include "core/cpu/kernels.h"
#include "core/cpu/optimizer.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/optimizer-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// w <- scale (w - step u)
struct Move {
  double scale = 1, step = 0;
};

Move MoveOnSphere(const BlockSums& sums, double rate) {
  constexpr double kSmallest = 1e-10;
  const double ww = sums.value[0], wu = sums.value[1], uu = sums.value[2];
  const double radius = std::sqrt(ww);
  const double step = rate * radius / std::max(std::sqrt(uu), kSmallest);
  // Rounding may leave a vanishing norm below zero.
  const double moved = std::max(0.0, ww - 2 * step * wu + step * step * uu);
  return {radius / std::max(std::sqrt(moved), kSmallest), step};
}

// The three sums of lanes of w and u.
class Sums {
 public:
  HWY_INLINE Sums() : ww_(hn::Zero(Wide())), wu_(hn::Zero(Wide())), uu_(hn::Zero(Wide())) {}
  HWY_INLINE void Add(hn::Vec<Wide> w, hn::Vec<Wide> u) {
    ww_ = hn::MulAdd(w, w, ww_);
    wu_ = hn::MulAdd(w, u, wu_);
    uu_ = hn::MulAdd(u, u, uu_);
  }
  HWY_INLINE void WriteTo(BlockSums& sums) const {
    const Wide wide;
    sums.value[0] = Sum(wide, ww_);
    sums.value[1] = Sum(wide, wu_);
    sums.value[2] = Sum(wide, uu_);
  }

 private:
  hn::Vec<Wide> ww_, wu_, uu_;
};

template <class S>
void HyperballSums(const HyperballUpdateArgs& args, int64_t begin, int64_t end, BlockSums& out) {
  using T = ComputeOf<S>;
  const Beside<T> d;
  const int64_t lanes = LanesOf(d);
  const T* w = args.w.data<T>();
  const S* u = args.u.data<S>();
  Sums sums;
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    sums.Add(Widen(d, LoadFirst(d, w + i, count)), Widen(d, LoadFirst(d, u + i, count)));
  }
  sums.WriteTo(out);
}

template <class S>
void HyperballMove(const HyperballUpdateArgs& args, Move move, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  T* w = args.w.data<T>();
  const S* u = args.u.data<S>();
  const auto scale = hn::Set(d, static_cast<T>(move.scale));
  const auto step = hn::Set(d, static_cast<T>(move.step));
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto moved = hn::NegMulAdd(step, LoadFirst(d, u + i, count), LoadFirst(d, w + i, count));
    StoreFirst(d, hn::Mul(scale, moved), w + i, count);
  }
}

template <class T>
void AdamHSums(const AdamHMomentsArgs& args, double clip, int64_t begin, int64_t end,
               BlockSums& out) {
  const Beside<T> d;
  const int64_t lanes = LanesOf(d);
  const AdamVectors<Beside<T>> adam(d, args.constants, clip);
  const T* gradient = args.gradient.data<T>();
  const T* w = args.w.data<T>();
  T* m = args.m.data<T>();
  T* v = args.v.data<T>();
  Sums sums;
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto g = hn::Mul(LoadFirst(d, gradient + i, count), adam.clip);
    const auto m1 = adam.FirstMoment(LoadFirst(d, m + i, count), g);
    const auto v1 = adam.SecondMoment(LoadFirst(d, v + i, count), g);
    StoreFirst(d, m1, m + i, count);
    StoreFirst(d, v1, v + i, count);
    // Lanes past the end hold m = v = 0: with eps 0 they would be NaN.
    auto u = adam.Update(m1, v1);
    if (count < lanes) u = hn::IfThenElseZero(hn::FirstN(d, static_cast<size_t>(count)), u);
    sums.Add(Widen(d, LoadFirst(d, w + i, count)), Widen(d, u));
  }
  sums.WriteTo(out);
}

template <class T>
void AdamHMoveRange(const AdamHMoveArgs& args, Move move, int64_t begin, int64_t end) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const AdamVectors<decltype(d)> adam(d, args.constants, 1);
  T* w = args.w.data<T>();
  const T* m = args.m.data<T>();
  const T* v = args.v.data<T>();
  const auto scale = hn::Set(d, static_cast<T>(move.scale));
  const auto step = hn::Set(d, static_cast<T>(move.step));
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    const auto u = adam.Update(LoadFirst(d, m + i, count), LoadFirst(d, v + i, count));
    const auto moved = hn::NegMulAdd(step, u, LoadFirst(d, w + i, count));
    StoreFirst(d, hn::Mul(scale, moved), w + i, count);
  }
}

void HyperballUpdateImpl(const HyperballUpdateArgs& args, void* scratch) {
  const int64_t n = args.w.elements();
  ByStorage(args.u.dtype(), [&](auto zero) {
    using S = decltype(zero);
    const BlockSums sums =
        SumOverBlocks(n, scratch, [&](int64_t begin, int64_t end, BlockSums& out) {
          HyperballSums<S>(args, begin, end, out);
        });
    const Move move = MoveOnSphere(sums, args.rate);
    ParallelFor(n, kElementGrain,
                [&](int64_t begin, int64_t end) { HyperballMove<S>(args, move, begin, end); });
  });
}

template <class T>
void AdamHMomentsOf(const AdamHMomentsArgs& args) {
  const double clip = ClipFactor(args.clip);
  SumBlocks(args.w.elements(), static_cast<BlockSums*>(args.sums.raw()),
            [&](int64_t begin, int64_t end, BlockSums& out) {
              AdamHSums<T>(args, clip, begin, end, out);
            });
}

void AdamHMomentsImpl(const AdamHMomentsArgs& args) {
  if (args.w.dtype() == DType::kF64) {
    AdamHMomentsOf<double>(args);
  } else {
    AdamHMomentsOf<float>(args);
  }
}

void AdamHMoveImpl(const AdamHMoveArgs& args) {
  BlockSums totals;
  std::copy_n(args.totals.data<double>(), kBlockSums, totals.value);
  const Move move = MoveOnSphere(totals, args.rate);
  ParallelFor(args.w.elements(), kElementGrain, [&](int64_t begin, int64_t end) {
    if (args.w.dtype() == DType::kF64) {
      AdamHMoveRange<double>(args, move, begin, end);
    } else {
      AdamHMoveRange<float>(args, move, begin, end);
    }
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(HyperballUpdateImpl);
HWY_EXPORT(AdamHMomentsImpl);
HWY_EXPORT(AdamHMoveImpl);

void HyperballUpdate(const Context& context, const HyperballUpdateArgs& args) {
  if (IsHalted(args.halted)) return;
  void* scratch = context.Scratch(OptimizerScratch(args.w.elements()));
  HWY_DYNAMIC_DISPATCH(HyperballUpdateImpl)(args, scratch);
}
void AdamHMoments(const Context& /*context*/, const AdamHMomentsArgs& args) {
  if (!IsHalted(args.clip.halted)) HWY_DYNAMIC_DISPATCH(AdamHMomentsImpl)(args);
}
void AdamHMove(const Context& /*context*/, const AdamHMoveArgs& args) {
  if (!IsHalted(args.halted)) HWY_DYNAMIC_DISPATCH(AdamHMoveImpl)(args);
}

}  // namespace overtok::cpu
#endif

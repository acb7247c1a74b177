// Silent steps of table rows: in place before a step, or into a copy for reading. One pass over a
// row; the sums over steps come from the schedule, and only elements whose root of v is not large
// beside eps go through the steps one by one.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/table_replay.cc"
#include <cmath>
#include <limits>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/cpu/table.h"
#include "core/ops/embedding.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/table-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// The factors of one row, by its last step. T: of arithmetic.
template <class D>
struct RowFactors {
  using T = hn::TFromD<D>;
  using V = hn::Vec<D>;

  RowFactors(D d, const TableRule& rule, const TableReplay& replay, int64_t last)
      : replay_(replay), last_(last), eps_(static_cast<T>(rule.eps)) {
    const auto at = [&](const Tensor& entries, int64_t i) {
      return static_cast<T>(entries.data<double>()[i]);
    };
    const int64_t gap = replay.step - last;
    kept = hn::Set(d, at(replay.kept, last));
    decays = at(replay.kept, last) != 1;
    power1 = hn::Set(d, at(replay.power1, gap));
    power2 = hn::Set(d, at(replay.power2, gap));
    moved_ = hn::Set(d, at(replay.moved, last));
    moved_eps_ = hn::Set(d, at(replay.moved_eps, last));
    moved_eps2_ = hn::Set(d, at(replay.moved_eps2, last));
    // The entry is made for f32. The series' error is e^3, so that another 2^-29 needs e smaller by
    // 2^-10 and v larger by 2^20. Roots of subnormal numbers are left to the steps one by one.
    const double from = replay.series_from.data<double>()[last] * (sizeof(T) == 8 ? 0x1p20 : 1);
    series_from_ = hn::Set(
        d, static_cast<T>(std::max(from, static_cast<double>(std::numeric_limits<T>::min()))));
    terms_ = std::min(gap, sizeof(T) == 8 ? replay.window : replay.window_f32);
  }

  // What the silent steps take off the value of elements with moments m, v.
  HWY_INLINE V Move(D d, V m, V v) const {
    const auto root = hn::Sqrt(v);
    const auto series = hn::Ge(v, series_from_);
    const auto still = hn::Eq(m, hn::Zero(d));
    const auto inverse = hn::Div(hn::Set(d, T(1)), root);
    const auto e = hn::Mul(hn::Set(d, eps_), inverse);
    const auto sum = hn::NegMulAdd(e, hn::NegMulAdd(e, moved_eps2_, moved_eps_), moved_);
    auto move = hn::Mul(hn::Mul(m, inverse), sum);
    if (HWY_UNLIKELY(!hn::AllTrue(d, hn::Or(series, still)))) {
      move = hn::IfThenElse(series, move, hn::Mul(m, StepByStep(d, root)));
    }
    return hn::IfThenZeroElse(still, move);
  }

  V kept, power1, power2;
  bool decays = false;

 private:
  HWY_NOINLINE V StepByStep(D d, V root) const {
    const double* gain = replay_.gain.data<double>() + last_;
    const double* second = replay_.root.data<double>() + last_;
    const double* later = replay_.kept.data<double>() + last_ + 1;
    const double* power = replay_.power1.data<double>() + 1;
    const double* root_power = replay_.root_power2.data<double>() + 1;
    const auto eps = hn::Set(d, eps_);
    auto sum = hn::Zero(d);
    for (int64_t j = 0; j < terms_; ++j) {
      const auto above = hn::Set(d, static_cast<T>(gain[j] * power[j] * later[j]));
      const auto below = hn::Set(d, static_cast<T>(second[j] * root_power[j]));
      sum = hn::Add(sum, hn::Div(above, hn::MulAdd(root, below, eps)));
    }
    return sum;
  }

  const TableReplay& replay_;
  int64_t last_, terms_ = 0;
  T eps_;
  V moved_, moved_eps_, moved_eps2_, series_from_;
};

// Numbers too small for the type's full precision become zero: arithmetic on them is slow, and what
// they stand for is below rounding. A NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> DropSubnormal(D d, hn::Vec<D> x) {
  const auto least = hn::Set(d, std::numeric_limits<hn::TFromD<D>>::min());
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(x), least), x);
}

// One row of a kAdam table; `write` takes the values. kStore: moments are rewritten.
template <bool kStore, class D, class S, class Writer>
HWY_INLINE void ReplayAdamRow(D d, const TableState& state, const RowFactors<D>& factors,
                              int64_t row, const S* value, Writer&& writer) {
  using T = hn::TFromD<D>;
  const int64_t width = state.value.dim(1), lanes = LanesOf(d);
  if (!state.m.defined()) {
    for (int64_t i = 0; i < width && (factors.decays || !kStore); i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      writer.Write(d, hn::Mul(factors.kept, LoadFirst(d, value + i, count)), i, count);
    }
    if constexpr (kStore) {
      const int64_t each = state.v.rank() == 1 ? 1 : width;
      T* v = state.v.data<T>() + row * each;
      for (int64_t i = 0; i < each; i += lanes) {
        const int64_t count = std::min(lanes, each - i);
        StoreFirst(d, DropSubnormal(d, hn::Mul(factors.power2, LoadFirst(d, v + i, count))), v + i,
                   count);
      }
    }
    return;
  }
  T* m = state.m.data<T>() + row * width;
  if (state.v.rank() == 1) {
    T* v = state.v.data<T>() + row;
    const auto second = hn::Set(d, *v);
    // The row's elements share what their moments are multiplied by.
    const auto factor = factors.Move(d, hn::Set(d, T(1)), second);
    for (int64_t i = 0; i < width; i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      const auto m0 = LoadFirst(d, m + i, count);
      const auto move = hn::IfThenZeroElse(hn::Eq(m0, hn::Zero(d)), hn::Mul(m0, factor));
      writer.Write(d, hn::MulSub(factors.kept, LoadFirst(d, value + i, count), move), i, count);
      if constexpr (kStore) {
        StoreFirst(d, DropSubnormal(d, hn::Mul(factors.power1, m0)), m + i, count);
      }
    }
    if constexpr (kStore) *v = hn::GetLane(hn::Mul(factors.power2, second));
    return;
  }
  T* v = state.v.data<T>() + row * width;
  for (int64_t i = 0; i < width; i += lanes) {
    const int64_t count = std::min(lanes, width - i);
    const auto m0 = LoadFirst(d, m + i, count), v0 = LoadFirst(d, v + i, count);
    const auto before = LoadFirst(d, value + i, count);
    writer.Write(d, hn::MulSub(factors.kept, before, factors.Move(d, m0, v0)), i, count);
    if constexpr (kStore) {
      const auto m1 = DropSubnormal(d, hn::Mul(factors.power1, m0));
      const auto v1 = hn::Mul(factors.power2, v0);
      // While m is not zero a small v still divides it.
      const auto v2 = hn::IfThenElse(hn::Eq(m1, hn::Zero(d)), DropSubnormal(d, v1), v1);
      StoreFirst(d, m1, m + i, count);
      StoreFirst(d, v2, v + i, count);
    }
  }
}

// The row's values before replay.step into `writer`.
template <bool kStore, class D, class S, class Writer>
HWY_INLINE void ReplayRow(D d, const TableState& state, const TableRule& rule,
                          const TableReplay& replay, int64_t row, Writer&& writer) {
  const int64_t width = state.value.dim(1), lanes = LanesOf(d);
  const S* value = state.value.data<S>() + row * width;
  const int64_t last = LastStep(state, row, replay.step);
  if (last == replay.step || rule.kind != TableRule::Kind::kAdam) {
    const auto kept = hn::Set(d, static_cast<hn::TFromD<D>>(replay.kept.data<double>()[last]));
    for (int64_t i = 0; i < width; i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      writer.Write(d, hn::Mul(kept, LoadFirst(d, value + i, count)), i, count);
    }
    return;
  }
  ReplayAdamRow<kStore>(d, state, RowFactors<D>(d, rule, replay, last), row, value, writer);
}

template <class S>
void ReplayRange(const TableReplayArgs& args, int64_t begin, int64_t end) {
  using D = hn::ScalableTag<ComputeOf<S>>;
  const D d;
  const uint32_t* rows = args.rows.data<uint32_t>();
  uint32_t* last = args.state.last.data<uint32_t>();
  const Rounding rounding(args.random_key, args.replay.step, 0);
  for (int64_t k = begin; k < end; ++k) {
    const auto row = static_cast<int64_t>(rows[k]);
    if (k + 1 < end) PrefetchRow(args.state, static_cast<int64_t>(rows[k + 1]));
    if (static_cast<int64_t>(last[row]) == args.replay.step) continue;
    S* value = args.state.value.data<S>() + row * args.state.value.dim(1);
    ReplayRow<true, D, S>(d, args.state, args.rule, args.replay, row,
                          RowWriter<D, S>(rounding, RandomRow<S>(args.state, row), value));
    last[row] = static_cast<uint32_t>(args.replay.step);
  }
}

// Stores rounded to nearest.
template <class D, class Y>
struct CopyWriter {
  Y* y;
  HWY_INLINE void Write(D d, hn::Vec<D> v, int64_t column, int64_t count) {
    StoreFirst(d, v, y + column, count);
  }
};

template <class S, class Y>
void LookupRange(const TableLookupArgs& args, int64_t begin, int64_t end) {
  using D = hn::ScalableTag<ComputeOf<S>>;
  const D d;
  const uint32_t* ids = args.ids.data<uint32_t>();
  const int64_t width = args.y.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    Y* y = args.y.data<Y>() + t * width;
    if (ids[t] == kNoRow) {
      std::fill_n(y, width, Y(ComputeOf<Y>(0)));
      continue;
    }
    ReplayRow<false, D, S>(d, args.state, args.rule, args.replay, static_cast<int64_t>(ids[t]),
                           CopyWriter<D, Y>{y});
  }
}

void TableReplayImpl(const TableReplayArgs& args) {
  ByStorage(args.state.value.dtype(), [&](auto zero) {
    ParallelFor(args.rows.elements(), RowGrain(args.state),
                [&](int64_t begin, int64_t end) { ReplayRange<decltype(zero)>(args, begin, end); });
  });
}

void TableLookupImpl(const TableLookupArgs& args) {
  ByStorage(args.state.value.dtype(), [&](auto zero) {
    using S = decltype(zero);
    ParallelFor(args.ids.elements(), RowGrain(args.state), [&](int64_t begin, int64_t end) {
      if constexpr (std::is_same_v<S, double>) {
        LookupRange<S, double>(args, begin, end);
      } else if (args.y.dtype() == DType::kBF16) {
        LookupRange<S, bf16>(args, begin, end);
      } else {
        LookupRange<S, float>(args, begin, end);
      }
    });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(TableReplayImpl);
HWY_EXPORT(TableLookupImpl);

void TableReplayRows(const Context& /*context*/, const TableReplayArgs& args) {
  if (args.halted.defined() && args.halted.data<uint32_t>()[0] != 0) return;
  HWY_DYNAMIC_DISPATCH(TableReplayImpl)(args);
}
void TableLookup(const Context& /*context*/, const TableLookupArgs& args) {
  HWY_DYNAMIC_DISPATCH(TableLookupImpl)(args);
}

}  // namespace overtok::cpu
#endif

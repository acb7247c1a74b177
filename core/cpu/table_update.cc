// A training step on touched rows: gradient and state are read once, values and state written once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/table_update.cc"
#include <cmath>

#include "core/cpu/kernels.h"
#include "core/cpu/optimizer.h"
#include "core/cpu/table.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/optimizer-inl.h"
#include "core/cpu/table-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// x where m is not zero: 0 / (0 + eps) is 0 even where eps rounds to 0.
template <class D>
HWY_INLINE hn::Vec<D> UnlessZero(D d, hn::Vec<D> m, hn::Vec<D> x) {
  return hn::IfThenZeroElse(hn::Eq(m, hn::Zero(d)), x);
}

// Mean of the squares of a row's clipped gradient, in f64.
template <class T>
double MeanSquare(const T* gradient, double clip, int64_t width) {
  const Beside<T> d;
  const Wide wide;
  const int64_t lanes = LanesOf(d);
  auto sum = hn::Zero(wide);
  for (int64_t i = 0; i < width; i += lanes) {
    const auto g = Widen(d, LoadFirst(d, gradient + i, std::min(lanes, width - i)));
    sum = hn::MulAdd(g, g, sum);
  }
  return Sum(wide, sum) * clip * clip / static_cast<double>(width);
}

template <class S>
class RowUpdate {
  using T = ComputeOf<S>;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;

 public:
  RowUpdate(const TableUpdateArgs& args, double clip)
      : args_(args),
        clip_(clip),
        width_(args.state.value.dim(1)),
        adam_(d_, Constants(args), clip),
        rate_(hn::Set(d_, static_cast<T>(args.rate))) {}

  void Run(int64_t k) const {
    const auto row = static_cast<int64_t>(args_.rows.data<uint32_t>()[k]);
    const TableState& state = args_.state;
    if (state.last.defined()) {
      uint32_t& last = state.last.data<uint32_t>()[row];
      OT_CHECK_EQ(static_cast<int64_t>(last), args_.step)
          << "row " << row << " of a table was not brought to the step";
      last = static_cast<uint32_t>(args_.step + 1);
    }
    const T* gradient = args_.gradient.data<T>() + k * width_;
    S* value = state.value.data<S>() + row * width_;
    RowWriter<D, S> writer(Rounding(args_.random_key, args_.step, 1), RandomRow<S>(state, row),
                           value);
    switch (args_.rule.kind) {
      case TableRule::Kind::kAdam:
        return state.v.rank() == 1 ? AdamByRow(row, gradient, value, writer)
                                   : Adam(row, gradient, value, writer);
      case TableRule::Kind::kAdagrad:
        return state.v.rank() == 1 ? AdagradByRow(row, gradient, value, writer)
                                   : Adagrad(row, gradient, value, writer);
      case TableRule::Kind::kSgd:
        return Each([&](int64_t i, int64_t count) {
          const V g = Gradient(gradient, i, count);
          writer.Write(d_, hn::NegMulAdd(rate_, g, LoadFirst(d_, value + i, count)), i, count);
        });
    }
  }

 private:
  static AdamConstants Constants(const TableUpdateArgs& args) {
    AdamConstants constants = args.constants;
    constants.beta1 = args.rule.beta1;
    constants.beta2 = args.rule.beta2;
    constants.eps = args.rule.eps;
    return constants;
  }

  template <class Body>
  HWY_INLINE void Each(const Body& body) const {
    const int64_t lanes = LanesOf(d_);
    for (int64_t i = 0; i < width_; i += lanes) body(i, std::min(lanes, width_ - i));
  }
  HWY_INLINE V Gradient(const T* gradient, int64_t i, int64_t count) const {
    return hn::Mul(LoadFirst(d_, gradient + i, count), adam_.clip);
  }
  // The first moment after the step; without one it is the gradient.
  HWY_INLINE V FirstMoment(T* m, V g, int64_t i, int64_t count) const {
    if (m == nullptr) return g;
    const V m1 = adam_.FirstMoment(LoadFirst(d_, m + i, count), g);
    StoreFirst(d_, m1, m + i, count);
    return m1;
  }
  T* FirstMoments(int64_t row) const {
    return args_.state.m.defined() ? args_.state.m.template data<T>() + row * width_ : nullptr;
  }

  void Adam(int64_t row, const T* gradient, const S* value, RowWriter<D, S>& writer) const {
    T* m = FirstMoments(row);
    T* v = args_.state.v.template data<T>() + row * width_;
    Each([&](int64_t i, int64_t count) {
      const V g = Gradient(gradient, i, count);
      const V m1 = FirstMoment(m, g, i, count);
      const V v1 = adam_.SecondMoment(LoadFirst(d_, v + i, count), g);
      StoreFirst(d_, v1, v + i, count);
      const V u = UnlessZero(d_, m1, adam_.Update(m1, v1));
      writer.Write(d_, hn::NegMulAdd(rate_, u, LoadFirst(d_, value + i, count)), i, count);
    });
  }

  void AdamByRow(int64_t row, const T* gradient, const S* value, RowWriter<D, S>& writer) const {
    T* m = FirstMoments(row);
    T& v = args_.state.v.template data<T>()[row];
    v = static_cast<T>(args_.rule.beta2 * static_cast<double>(v) +
                       (1 - args_.rule.beta2) * MeanSquare(gradient, clip_, width_));
    const double root = std::sqrt(static_cast<double>(v) / args_.constants.correction2);
    const V factor = hn::Set(
        d_, static_cast<T>(args_.rate / args_.constants.correction1 / (root + args_.rule.eps)));
    Each([&](int64_t i, int64_t count) {
      const V m1 = FirstMoment(m, Gradient(gradient, i, count), i, count);
      const V move = UnlessZero(d_, m1, hn::Mul(factor, m1));
      writer.Write(d_, hn::Sub(LoadFirst(d_, value + i, count), move), i, count);
    });
  }

  void Adagrad(int64_t row, const T* gradient, const S* value, RowWriter<D, S>& writer) const {
    T* v = args_.state.v.template data<T>() + row * width_;
    Each([&](int64_t i, int64_t count) {
      const V g = Gradient(gradient, i, count);
      const V v1 = hn::MulAdd(g, g, LoadFirst(d_, v + i, count));
      StoreFirst(d_, v1, v + i, count);
      const V u = UnlessZero(d_, g, hn::Div(g, hn::Add(hn::Sqrt(v1), adam_.eps)));
      writer.Write(d_, hn::NegMulAdd(rate_, u, LoadFirst(d_, value + i, count)), i, count);
    });
  }

  void AdagradByRow(int64_t row, const T* gradient, const S* value, RowWriter<D, S>& writer) const {
    T& v = args_.state.v.template data<T>()[row];
    v = static_cast<T>(static_cast<double>(v) + MeanSquare(gradient, clip_, width_));
    const V factor = hn::Set(
        d_, static_cast<T>(args_.rate / (std::sqrt(static_cast<double>(v)) + args_.rule.eps)));
    Each([&](int64_t i, int64_t count) {
      const V g = Gradient(gradient, i, count);
      const V move = UnlessZero(d_, g, hn::Mul(factor, g));
      writer.Write(d_, hn::Sub(LoadFirst(d_, value + i, count), move), i, count);
    });
  }

  const TableUpdateArgs& args_;
  double clip_;
  int64_t width_;
  D d_;
  AdamVectors<D> adam_;
  V rate_;
};

void TableUpdateImpl(const TableUpdateArgs& args) {
  const Tensor& halted = args.clip.halted;
  if (halted.defined() && halted.data<uint32_t>()[0] != 0) return;
  const double clip = ClipFactor(args.clip);
  ByStorage(args.state.value.dtype(), [&](auto zero) {
    ParallelFor(args.rows.elements(), RowGrain(args.state), [&](int64_t begin, int64_t end) {
      const RowUpdate<decltype(zero)> update(args, clip);
      const uint32_t* rows = args.rows.data<uint32_t>();
      for (int64_t k = begin; k < end; ++k) {
        if (k + 1 < end) PrefetchRow(args.state, static_cast<int64_t>(rows[k + 1]));
        update.Run(k);
      }
    });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(TableUpdateImpl);

void TableUpdate(const Context& /*context*/, const TableUpdateArgs& args) {
  HWY_DYNAMIC_DISPATCH(TableUpdateImpl)(args);
}

}  // namespace overtok::cpu
#endif

// A training step on touched rows: gradient and state are read once, values and state written once
// (a second moment by row takes the gradient twice, the second time from the L1 cache).
// Bytes an element in f32: kAdam 28 (20 with the second moment by row), kAdagrad 20 (12), kSgd 12;
// 4 fewer with bf16 values. FLOPs: 14, 7, 3; bf16 values cost some 15 integer operations more.
#include "core/cuda/optimizer.h"
#include "core/cuda/table.h"

namespace overtok::OT_BACKEND {
namespace {

struct UpdateScalars {
  TableRule::Kind kind;
  ClipScalars clip;
  AdamFactors adam;
  float rate_f32;
  double rate, beta2, eps, correction1, correction2;
  int64_t step;
  const uint32_t* halted;  // null: never
};

AdamConstants Constants(const TableUpdateArgs& args) {
  AdamConstants constants = args.constants;
  constants.beta1 = args.rule.beta1;
  constants.beta2 = args.rule.beta2;
  constants.eps = args.rule.eps;
  return constants;
}

// Mean of the squares of a row's clipped gradient, in f64, on all lanes.
template <int N>
__device__ __forceinline__ double MeanSquare(const float* gradient, double clip, int64_t width) {
  double sum = 0;
  for (int column = Lane() * N; column < width; column += kWarp * N) {
    const auto pack = LoadPack<N>(gradient + column);
    for (int i = 0; i < N; ++i) {
      const double g = pack.v[i];
      sum = fma(g, g, sum);
    }
  }
  return WarpSum(sum) * clip * clip / static_cast<double>(width);
}

// One row, by one warp.
template <int N, class S>
struct RowUpdate {
  const TablePointers<S>& table;
  const UpdateScalars& scalars;
  int64_t row;
  const float* gradient;
  double clip;
  RowWriter<S>& writer;

  // value <- step(clipped gradient, value, element of the row) for each element of a pack.
  template <class F>
  __device__ __forceinline__ void Each(const F& f) const {
    const S* value = table.value + row * table.width;
    const auto factor = static_cast<float>(clip);
    ForEachStretch<N>(table.width, [&](int first, int column, bool here) {
      writer.Prepare(first);
      if (!here) return;
      auto x = LoadFloats<N>(value + column), g = LoadPack<N>(gradient + column);
      for (int i = 0; i < N; ++i) g.v[i] *= factor;
      f(column, g, x);
      writer.template Write<N>(x, column);
    });
  }

  // The first moments after the step, in g's place; without them it stays the gradient.
  __device__ __forceinline__ void FirstMoments(int column, Pack<float, N>& g) const {
    if (table.m == nullptr) return;
    float* at = table.m + row * table.width + column;
    auto m = LoadPack<N>(at);
    for (int i = 0; i < N; ++i) m.v[i] = scalars.adam.FirstMoment(m.v[i], g.v[i]);
    StorePack<N>(at, m);
    g = m;
  }

  // 0 / (0 + eps) is 0 even where eps rounds to 0: nothing moves where the numerator is 0.
  __device__ __forceinline__ void Adam() const {
    float* v = table.v + row * table.width;
    Each([&](int column, Pack<float, N>& g, Pack<float, N>& x) {
      auto v1 = LoadPack<N>(v + column);
      for (int i = 0; i < N; ++i) v1.v[i] = scalars.adam.SecondMoment(v1.v[i], g.v[i]);
      StorePack<N>(v + column, v1);
      FirstMoments(column, g);
      for (int i = 0; i < N; ++i) {
        const float u = g.v[i] == 0 ? 0.0F : scalars.adam.Update(g.v[i], v1.v[i]);
        x.v[i] = fmaf(-scalars.rate_f32, u, x.v[i]);
      }
    });
  }
  __device__ __forceinline__ void Adagrad() const {
    float* v = table.v + row * table.width;
    Each([&](int column, Pack<float, N>& g, Pack<float, N>& x) {
      auto v1 = LoadPack<N>(v + column);
      for (int i = 0; i < N; ++i) {
        v1.v[i] = fmaf(g.v[i], g.v[i], v1.v[i]);
        const float u = g.v[i] == 0 ? 0.0F : g.v[i] / (sqrtf(v1.v[i]) + scalars.adam.eps);
        x.v[i] = fmaf(-scalars.rate_f32, u, x.v[i]);
      }
      StorePack<N>(v + column, v1);
    });
  }

  // With the row's second moment `v`, `factor` times what moves it.
  __device__ __forceinline__ void MoveBy(float factor) const {
    Each([&](int column, Pack<float, N>& g, Pack<float, N>& x) {
      FirstMoments(column, g);
      for (int i = 0; i < N; ++i) x.v[i] -= g.v[i] == 0 ? 0.0F : factor * g.v[i];
    });
  }
  // The row's second moment after the step is old_share of the old one and new_share of the mean
  // square.
  __device__ __forceinline__ double SecondMoment(double old_share, double new_share) const {
    const double mean = MeanSquare<N>(gradient, clip, table.width);
    float* v = table.v + row;
    const auto v1 = static_cast<float>(old_share * static_cast<double>(*v) + new_share * mean);
    SyncWarp();  // all lanes have read it
    if (Lane() == 0) *v = v1;
    return v1;
  }
  __device__ __forceinline__ void AdamByRow() const {
    const double v = SecondMoment(scalars.beta2, 1 - scalars.beta2);
    const double root = sqrt(v / scalars.correction2);
    MoveBy(static_cast<float>(scalars.rate / scalars.correction1 / (root + scalars.eps)));
  }
  __device__ __forceinline__ void AdagradByRow() const {
    const double v = SecondMoment(1, 1);
    MoveBy(static_cast<float>(scalars.rate / (sqrt(v) + scalars.eps)));
  }
  __device__ __forceinline__ void Sgd() const {
    Each([&](int /*column*/, Pack<float, N>& g, Pack<float, N>& x) {
      for (int i = 0; i < N; ++i) x.v[i] = fmaf(-scalars.rate_f32, g.v[i], x.v[i]);
    });
  }
};

template <int N, class S>
__global__ void __launch_bounds__(kTableThreads)
    UpdateKernel(TablePointers<S> table, UpdateScalars scalars, const uint32_t* rows,
                 const float* gradient, int64_t count, Rounding rounding) {
  Shared shared;
  auto* room = shared.Take<uint16_t>(kRandomRoom<S>);
  const int64_t k = WarpOfGrid();
  if (k >= count || (scalars.halted != nullptr && *scalars.halted != 0)) return;
  const int64_t row = rows[k];
  if (table.last != nullptr) {
    if (table.last[row] != scalars.step) Trap("a row of a table was not brought to the step");
    SyncWarp();  // all lanes have read it
    if (Lane() == 0) table.last[row] = static_cast<uint32_t>(scalars.step + 1);
  }
  RowWriter<S> writer(rounding, table, row, room);
  const RowUpdate<N, S> update = {
      table, scalars, row, gradient + k * table.width, ClipFactor(scalars.clip), writer};
  switch (scalars.kind) {
    case TableRule::Kind::kAdam:
      if (table.by_row) return update.AdamByRow();
      return update.Adam();
    case TableRule::Kind::kAdagrad:
      if (table.by_row) return update.AdagradByRow();
      return update.Adagrad();
    case TableRule::Kind::kSgd:
      return update.Sgd();
  }
}

}  // namespace

void TableUpdate(const Context& context, const TableUpdateArgs& args) {
  const int64_t count = args.rows.elements();
  const AdamConstants constants = Constants(args);
  const UpdateScalars scalars = {
      .kind = args.rule.kind,
      .clip = ScalarsOf(args.clip),
      .adam = AdamFactors(constants),
      .rate_f32 = static_cast<float>(args.rate),
      .rate = args.rate,
      .beta2 = constants.beta2,
      .eps = constants.eps,
      .correction1 = constants.correction1,
      .correction2 = constants.correction2,
      .step = args.step,
      .halted = args.clip.halted.defined() ? args.clip.halted.data<uint32_t>() : nullptr};
  const Rounding rounding(args.random_key, args.step, 1);
  const auto* gradient = args.gradient.data<float>();
  ByActivation(args.state.value.dtype(), "update of table rows", [&](auto zero) {
    using S = decltype(zero);
    const TablePointers<S> table(args.state);
    const LaunchShape shape = TableShape(count, SharedBytes<uint16_t>(kRandomRoom<S>));
    ByRowPack(table, gradient, [&](auto size) {
      Launch("TableUpdate", context, shape, UpdateKernel<decltype(size)::value, S>, table, scalars,
             args.rows.data<uint32_t>(), gradient, count, rounding);
    });
  });
}

}  // namespace overtok::OT_BACKEND

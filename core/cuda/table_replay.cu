// Silent steps of table rows: in place before a step, or into a copy for reading. One pass over a
// row; the sums over steps come from the schedule's tables, and only elements whose root of v is
// not large beside eps go through the steps one by one, 32 steps at a time, a step a lane.
// Bytes a row of width w: TableReplayRows reads and writes value, m and v, 24 w in f32 (16 w with v
// by row, 12 w of these with bf16 values); TableLookup reads them and writes y, 12 w + 2 w with
// bf16 y. Rows that reflect the step already: 4 bytes, and the copy. 12 FLOPs an element.
#include "core/cuda/table.h"

namespace overtok::OT_BACKEND {
namespace {

// On a multiprocessor: 24 rows under way with 1.5 KB of loads each, more than the 25 KB that the
// memory of an H200 needs to be busy; asking for no more blocks leaves registers for all paths.
[[maybe_unused]] constexpr int kBlocksAtOnce = 3;

// A TableReplay in kernels.
struct ReplayPointers {
  int64_t step, window;
  const double *moved, *moved_eps, *moved_eps2, *series_from, *kept, *power1, *power2, *root_power2,
      *gain, *root;
  float eps;
  bool moves;  // kAdam: silent steps do more than decay

  ReplayPointers(const TableReplay& replay, const TableRule& rule)
      : step(replay.step),
        window(replay.window_f32),
        moved(replay.moved.data<double>()),
        moved_eps(replay.moved_eps.data<double>()),
        moved_eps2(replay.moved_eps2.data<double>()),
        series_from(replay.series_from.data<double>()),
        kept(replay.kept.data<double>()),
        power1(replay.power1.data<double>()),
        power2(replay.power2.data<double>()),
        root_power2(replay.root_power2.data<double>()),
        gain(replay.gain.data<double>()),
        root(replay.root.data<double>()),
        eps(static_cast<float>(rule.eps)),
        moves(rule.kind == TableRule::Kind::kAdam) {}
};

__device__ __forceinline__ float DropSubnormal(float x) { return fabsf(x) < FLT_MIN ? 0.0F : x; }

__device__ __forceinline__ int LowestBit(unsigned x) { return CountBits((x & (0U - x)) - 1); }

// The factors of one row, by its last step.
class RowFactors {
 public:
  __device__ RowFactors(const ReplayPointers& replay, int64_t last) : replay_(replay), last_(last) {
    const int64_t gap = replay.step - last;
    kept = static_cast<float>(replay.kept[last]);
    power1 = static_cast<float>(replay.power1[gap]);
    power2 = static_cast<float>(replay.power2[gap]);
    moved_ = static_cast<float>(replay.moved[last]);
    moved_eps_ = static_cast<float>(replay.moved_eps[last]);
    moved_eps2_ = static_cast<float>(replay.moved_eps2[last]);
    // Roots of subnormal numbers are left to the steps one by one.
    const double from = replay.series_from[last];
    series_from_ = static_cast<float>(from < FLT_MIN ? static_cast<double>(FLT_MIN) : from);
    terms_ = static_cast<int>(gap < replay.window ? gap : replay.window);
  }

  // What the silent steps take off the values of elements with moments m, v. All lanes call.
  template <int N>
  __device__ __forceinline__ Pack<float, N> Move(const Pack<float, N>& m,
                                                 const Pack<float, N>& v) const {
    Pack<float, N> move;
    unsigned slow = 0;  // bit i: element i goes through the steps
    OT_UNROLL for (int i = 0; i < N; ++i) {
      const bool series = v.v[i] >= series_from_, still = m.v[i] == 0;
      const float inverse = 1.0F / sqrtf(v.v[i]), e = replay_.eps * inverse;
      const float sum = fmaf(-e, fmaf(-e, moved_eps2_, moved_eps_), moved_);
      move.v[i] = still ? 0.0F : m.v[i] * inverse * sum;
      if (!series && !still) slow |= 1U << i;
    }
    // One element after the other, by all lanes.
    OT_KEEP_LOOP for (unsigned lanes = VoteBallot(slow != 0); lanes != 0; lanes &= lanes - 1) {
      const int lane = LowestBit(lanes);
      OT_KEEP_LOOP for (unsigned left = Shuffle(slow, lane); left != 0; left &= left - 1) {
        const int element = LowestBit(left);
        float second = 0;
        OT_UNROLL for (int i = 0; i < N; ++i) second = i == element ? v.v[i] : second;
        const float sum = StepByStep(sqrtf(Shuffle(second, lane)));
        OT_UNROLL for (int i = 0; i < N; ++i) {
          if (i == element && Lane() == lane) move.v[i] = m.v[i] * sum;
        }
      }
    }
    return move;
  }

  float kept, power1, power2;

 private:
  __device__ __forceinline__ float StepByStep(float root) const {
    float sum = 0;
    OT_KEEP_LOOP for (int j = Lane(); j < terms_; j += kWarp) {
      const int64_t i = last_ + j;
      const auto above =
          static_cast<float>(replay_.gain[i] * replay_.power1[j + 1] * replay_.kept[i + 1]);
      const auto below = static_cast<float>(replay_.root[i] * replay_.root_power2[j + 1]);
      sum += above / fmaf(root, below, replay_.eps);
    }
    return WarpSum(sum);
  }

  const ReplayPointers& replay_;
  int64_t last_;
  int terms_;
  float moved_, moved_eps_, moved_eps2_, series_from_;
};

// Values of a row, all multiplied by `kept`.
template <int N, class S, class Writer>
__device__ __forceinline__ void ScaleRow(const S* value, int64_t width, float kept,
                                         Writer& writer) {
  ForEachStretch<N>(width, [&](int first, int column, bool here) {
    writer.Prepare(first);
    if (!here) return;
    auto x = LoadFloats<N>(value + column);
    for (int i = 0; i < N; ++i) x.v[i] *= kept;
    writer.template Write<N>(x, column);
  });
}

// A row without a first moment: values decay, the second moment does.
template <bool kStore, int N, class S, class Writer>
__device__ __forceinline__ void ReplayWithoutFirst(const TablePointers<S>& table,
                                                   const RowFactors& factors, bool decays,
                                                   int64_t row, Writer& writer) {
  if (decays || !kStore)
    ScaleRow<N>(table.value + row * table.width, table.width, factors.kept, writer);
  if constexpr (kStore) {
    if (table.by_row) {
      if (Lane() == 0) table.v[row] = DropSubnormal(factors.power2 * table.v[row]);
      return;
    }
    float* v = table.v + row * table.width;
    ForEachStretch<N>(table.width, [&](int /*first*/, int column, bool here) {
      if (!here) return;
      auto pack = LoadPack<N>(v + column);
      for (int i = 0; i < N; ++i) pack.v[i] = DropSubnormal(factors.power2 * pack.v[i]);
      StorePack<N>(v + column, pack);
    });
  }
}

// A row whose elements share the second moment, and so what their first ones are multiplied by.
template <bool kStore, int N, class S, class Writer>
__device__ __forceinline__ void ReplayByRow(const TablePointers<S>& table,
                                            const RowFactors& factors, int64_t row,
                                            Writer& writer) {
  const S* value = table.value + row * table.width;
  float* m = table.m + row * table.width;
  const float second = table.v[row];
  const float factor = factors.Move<1>({{1.0F}}, {{second}}).v[0];
  ForEachStretch<N>(table.width, [&](int first, int column, bool here) {
    writer.Prepare(first);
    if (!here) return;
    auto x = LoadFloats<N>(value + column), first_moment = LoadPack<N>(m + column);
    for (int i = 0; i < N; ++i) {
      float& m0 = first_moment.v[i];
      x.v[i] = fmaf(factors.kept, x.v[i], -(m0 == 0 ? 0.0F : m0 * factor));
      m0 = DropSubnormal(factors.power1 * m0);
    }
    writer.template Write<N>(x, column);
    if constexpr (kStore) StorePack<N>(m + column, first_moment);
  });
  if constexpr (kStore) {
    SyncWarp();  // all lanes have read it
    if (Lane() == 0) table.v[row] = factors.power2 * second;
  }
}

template <bool kStore, int N, class S, class Writer>
__device__ __forceinline__ void ReplayByElement(const TablePointers<S>& table,
                                                const RowFactors& factors, int64_t row,
                                                Writer& writer) {
  const S* value = table.value + row * table.width;
  float* m = table.m + row * table.width;
  float* v = table.v + row * table.width;
  ForEachStretch<N>(table.width, [&](int first, int column, bool here) {
    writer.Prepare(first);
    Pack<float, N> x = {}, m0 = {}, v0 = {};
    if (here) {
      x = LoadFloats<N>(value + column);
      m0 = LoadPack<N>(m + column);
      v0 = LoadPack<N>(v + column);
    }
    const auto move = factors.Move<N>(m0, v0);
    for (int i = 0; i < N; ++i) {
      x.v[i] = fmaf(factors.kept, x.v[i], -move.v[i]);
      m0.v[i] = DropSubnormal(factors.power1 * m0.v[i]);
      v0.v[i] *= factors.power2;
      // While m is not zero a small v still divides it.
      if (m0.v[i] == 0) v0.v[i] = DropSubnormal(v0.v[i]);
    }
    if (!here) return;
    writer.template Write<N>(x, column);
    if constexpr (kStore) {
      StorePack<N>(m + column, m0);
      StorePack<N>(v + column, v0);
    }
  });
}

// The row's values before replay.step into `writer`.
template <bool kStore, int N, class S, class Writer>
__device__ __forceinline__ void ReplayRow(const TablePointers<S>& table,
                                          const ReplayPointers& replay, int64_t row, int64_t last,
                                          Writer& writer) {
  if (last == replay.step || !replay.moves) {
    ScaleRow<N>(table.value + row * table.width, table.width, static_cast<float>(replay.kept[last]),
                writer);
    return;
  }
  const RowFactors factors(replay, last);
  if (table.m == nullptr) {
    ReplayWithoutFirst<kStore, N>(table, factors, factors.kept != 1, row, writer);
  } else if (table.by_row) {
    ReplayByRow<kStore, N>(table, factors, row, writer);
  } else {
    ReplayByElement<kStore, N>(table, factors, row, writer);
  }
}

// Steps that a row reflects; a table without the record reflects all of them.
template <class S>
__device__ __forceinline__ int64_t LastStep(const TablePointers<S>& table, int64_t row,
                                            int64_t step) {
  if (table.last == nullptr) return step;
  const int64_t last = table.last[row];
  if (last > step) Trap("a row of a table reflects a later step");
  return last;
}

template <int N, class S>
__global__ void __launch_bounds__(kTableThreads, kBlocksAtOnce)
    ReplayKernel(TablePointers<S> table, ReplayPointers replay, const uint32_t* rows, int64_t count,
                 Rounding rounding, const uint32_t* halted) {
  Shared shared;
  auto* room = shared.Take<uint16_t>(kRandomRoom<S>);
  const int64_t k = WarpOfGrid();
  if (k >= count || (halted != nullptr && *halted != 0)) return;
  const int64_t row = rows[k], last = LastStep(table, row, replay.step);
  if (last == replay.step) return;
  RowWriter<S> writer(rounding, table, row, room);
  ReplayRow<true, N>(table, replay, row, last, writer);
  SyncWarp();  // all lanes have read it
  if (Lane() == 0) table.last[row] = static_cast<uint32_t>(replay.step);
}

// Stores rounded to nearest.
template <class Y>
struct CopyWriter {
  Y* y;
  __device__ __forceinline__ void Prepare(int /*first*/) {}
  template <int N>
  __device__ __forceinline__ void Write(const Pack<float, N>& pack, int column) {
    Pack<Y, N> out;
    for (int i = 0; i < N; ++i) out.v[i] = FromFloat<Y>(pack.v[i]);
    StorePack<N>(y + column, out);
  }
};

template <int N, class S, class Y>
__global__ void __launch_bounds__(kTableThreads, kBlocksAtOnce)
    LookupKernel(TablePointers<S> table, ReplayPointers replay, const uint32_t* ids, Y* y,
                 int64_t count) {
  const int64_t t = WarpOfGrid();
  if (t >= count) return;
  CopyWriter<Y> writer = {y + t * table.width};
  const uint32_t id = ids[t];
  if (id == kNoRow) {
    ForEachStretch<N>(table.width, [&](int /*first*/, int column, bool here) {
      if (here) writer.template Write<N>(Pack<float, N>{}, column);
    });
    return;
  }
  ReplayRow<false, N>(table, replay, id, LastStep(table, id, replay.step), writer);
}

}  // namespace

void TableReplayRows(const Context& context, const TableReplayArgs& args) {
  const int64_t count = args.rows.elements();
  const ReplayPointers replay(args.replay, args.rule);
  const Rounding rounding(args.random_key, args.replay.step, 0);
  const uint32_t* halted = args.halted.defined() ? args.halted.data<uint32_t>() : nullptr;
  ByActivation(args.state.value.dtype(), "replay of table rows", [&](auto zero) {
    using S = decltype(zero);
    const TablePointers<S> table(args.state);
    const LaunchShape shape = TableShape(count, SharedBytes<uint16_t>(kRandomRoom<S>));
    ByRowPack(table, [&](auto size) {
      Launch("TableReplayRows", context, shape, ReplayKernel<decltype(size)::value, S>, table,
             replay, args.rows.data<uint32_t>(), count, rounding, halted);
    });
  });
}

void TableLookup(const Context& context, const TableLookupArgs& args) {
  const int64_t count = args.ids.elements();
  const ReplayPointers replay(args.replay, args.rule);
  ByActivation(args.state.value.dtype(), "lookup in a table", [&](auto zero) {
    using S = decltype(zero);
    const TablePointers<S> table(args.state);
    ByActivation(args.y.dtype(), "lookup in a table", [&](auto result) {
      using Y = decltype(result);
      auto* y = args.y.data<Y>();
      ByRowPack(table, y, [&](auto size) {
        Launch("TableLookup", context, TableShape(count, 0),
               LookupKernel<decltype(size)::value, S, Y>, table, replay, args.ids.data<uint32_t>(),
               y, count);
      });
    });
  });
}

}  // namespace overtok::OT_BACKEND

// Row lookup, and its gradient without the positions that name no row: (id, position) pairs are
// sorted by id (radix sort, which keeps positions in order), then each run of equal ids adds its
// rows in order. Runs are divided among the threads, and wide rows by columns too, so that one
// frequent id does not leave the others idle.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/embedding.cc"
#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
#include "core/sort_by_id.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// S: storage of the output; R: of the rows.
template <class S, class R>
void LookUp(const EmbeddingForwardArgs& args, int64_t begin, int64_t end) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t width = args.table.dim(1);
  const uint32_t* ids = args.ids.data<uint32_t>();
  const auto scale = hn::Set(d, static_cast<T>(args.scale));
  for (int64_t t = begin; t < end; ++t) {
    S* y = args.y.data<S>() + t * width;
    if (ids[t] == kNoRow) {
      std::fill_n(y, width, S(T(0)));
      continue;
    }
    const R* row = args.table.data<R>() + static_cast<int64_t>(ids[t]) * width;
    for (int64_t i = 0; i < width; i += lanes) {
      const int64_t count = std::min(lanes, width - i);
      StoreFirst(d, hn::Mul(scale, LoadFirst(d, row + i, count)), y + i, count);
    }
  }
}

// Columns [from, to) of the runs of equal ids that begin in entries [begin, end) of `sorted`.
template <class S>
void AddRuns(const EmbeddingBackwardArgs& args, const uint64_t* sorted, int64_t begin, int64_t end,
             int64_t entries, int64_t from, int64_t to) {
  using T = ComputeOf<S>;
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  const int64_t width = args.dtable.dim(1);
  const auto scale = hn::Set(d, static_cast<T>(args.scale));
  int64_t k = begin;
  if (k > 0)
    while (k < end && sorted[k] >> 32 == sorted[k - 1] >> 32) ++k;  // another task's run
  if (k == end) return;
  for (; k < entries; ++k) {
    if (k >= end && sorted[k] >> 32 != sorted[k - 1] >> 32) break;
    T* sum = args.dtable.data<T>() + static_cast<int64_t>(sorted[k] >> 32) * width;
    const S* row = args.dy.data<S>() + static_cast<int64_t>(sorted[k] & 0xffffffffu) * width;
    for (int64_t i = from; i < to; i += lanes) {
      const int64_t count = std::min(lanes, to - i);
      StoreFirst(d, hn::MulAdd(scale, LoadFirst(d, row + i, count), LoadFirst(d, sum + i, count)),
                 sum + i, count);
    }
  }
}

void EmbeddingForwardImpl(const EmbeddingForwardArgs& args) {
  const int64_t grain = std::max<int64_t>(1, 8192 / args.table.dim(1));
  ByStorage(args.y.dtype(), [&](auto zero) {
    using S = decltype(zero);
    ParallelFor(args.ids.elements(), grain, [&](int64_t begin, int64_t end) {
      if constexpr (!std::is_same_v<S, double>) {
        if (args.table.dtype() == DType::kBF16) return LookUp<S, bf16>(args, begin, end);
      }
      LookUp<S, ComputeOf<S>>(args, begin, end);
    });
  });
}

void EmbeddingBackwardImpl(const EmbeddingBackwardArgs& args, const uint64_t* sorted,
                           int64_t entries) {
  constexpr int64_t kEntries = 512, kColumns = 256;
  const int64_t width = args.dtable.dim(1);
  const int64_t chunks = (entries + kEntries - 1) / kEntries;
  const int64_t strips = (width + kColumns - 1) / kColumns;
  ByStorage(args.dy.dtype(), [&](auto zero) {
    ParallelTasks(chunks * strips, [&](int64_t task) {
      const int64_t chunk = task / strips, strip = task % strips;
      AddRuns<decltype(zero)>(args, sorted, chunk * kEntries,
                              std::min(entries, (chunk + 1) * kEntries), entries, strip * kColumns,
                              std::min(width, (strip + 1) * kColumns));
    });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {
HWY_EXPORT(EmbeddingForwardImpl);
HWY_EXPORT(EmbeddingBackwardImpl);

void EmbeddingForward(const Context& /*context*/, const EmbeddingForwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(EmbeddingForwardImpl)(args);
}

void EmbeddingBackward(const Context& context, const EmbeddingBackwardArgs& args) {
  const int64_t n = args.ids.elements();
  auto* pairs = static_cast<uint64_t*>(context.Scratch(EmbeddingBackwardScratch(n)));
  const uint32_t* ids = args.ids.data<uint32_t>();
  int64_t entries = 0;
  for (int64_t t = 0; t < n; ++t) {
    if (ids[t] == kNoRow) continue;
    pairs[entries++] = static_cast<uint64_t>(ids[t]) << 32 | static_cast<uint64_t>(t);
  }
  const uint64_t* sorted = SortById(pairs, pairs + n, entries);
  HWY_DYNAMIC_DISPATCH(EmbeddingBackwardImpl)(args, sorted, entries);
}

}  // namespace overtok::cpu
#endif

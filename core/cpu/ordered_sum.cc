// Sums of equal tensors in a given order, chunk by chunk: the partial sums of a tree live in a few
// chunks that stay in the cache, and every part is read once.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/ordered_sum.cc"
#include "core/ops/ordered_sum.h"

#include <array>
#include <bit>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

constexpr int64_t kChunk = 256;
// One partial sum per level of the tree; parts are counted by an int, so 32 are enough.
constexpr size_t kLevels = 32;

// sum[i] = a[i] + b[i], or a[i] where b is null; a, b of storage types, sum of any.
template <class A, class B, class C>
HWY_INLINE void AddChunk(const A* a, const B* b, C* sum, int64_t count) {
  const hn::ScalableTag<ComputeOf<A>> d;
  const int64_t lanes = LanesOf(d);
  for (int64_t i = 0; i < count; i += lanes) {
    const int64_t n = std::min(lanes, count - i);
    auto v = LoadFirst(d, a + i, n);
    if (b != nullptr) v = hn::Add(v, LoadFirst(d, b + i, n));
    StoreFirst(d, v, sum + i, n);
  }
}

template <class S>
class ChunkSum {
 public:
  using T = ComputeOf<S>;
  explicit ChunkSum(const OrderedSumArgs& args) : args_(args) {}

  void Run(int64_t begin, int64_t end) {
    const auto parts = static_cast<int64_t>(args_.parts.size());
    for (at_ = begin; at_ < end; at_ += kChunk) {
      count_ = std::min(kChunk, end - at_);
      if (args_.order == OrderedSumArgs::Order::kTree) {
        Tree(0, parts, 0);
      } else {
        AddChunk(Part(0), parts > 1 ? Part(1) : nullptr, sums_[0].data(), count_);
        for (int64_t p = 2; p < parts; ++p)
          AddChunk(sums_[0].data(), Part(p), sums_[0].data(), count_);
      }
      AddChunk(sums_[0].data(), static_cast<const T*>(nullptr), args_.out.data<S>() + at_, count_);
    }
  }

 private:
  const S* Part(int64_t p) const { return args_.parts[static_cast<size_t>(p)].data<S>() + at_; }

  // The sum of parts [first, first + parts) into the sums of `level`; uses those above it.
  void Tree(int64_t first, int64_t parts, size_t level) {
    T* sum = sums_[level].data();
    if (parts <= 2) {
      AddChunk(Part(first), parts == 2 ? Part(first + 1) : nullptr, sum, count_);
      return;
    }
    const auto left = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(parts - 1)));
    Tree(first, left, level);
    if (parts - left == 1) {
      AddChunk(sum, Part(first + left), sum, count_);
      return;
    }
    Tree(first + left, parts - left, level + 1);
    AddChunk(sum, sums_[level + 1].data(), sum, count_);
  }

  const OrderedSumArgs& args_;
  int64_t at_ = 0, count_ = 0;
  std::array<std::array<T, kChunk>, kLevels> sums_;
};

void OrderedSumImpl(const OrderedSumArgs& args) {
  ByStorage(args.out.dtype(), [&](auto zero) {
    using S = decltype(zero);
    ParallelFor(args.out.elements(), kElementGrain,
                [&](int64_t begin, int64_t end) { ChunkSum<S>(args).Run(begin, end); });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(OrderedSumImpl);

void OrderedSum(const Context& /*context*/, const OrderedSumArgs& args) {
  HWY_DYNAMIC_DISPATCH(OrderedSumImpl)(args);
}

}  // namespace overtok::cpu
#endif

// Fill, cast and add: one pass each.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/cpu/elementwise.cc"
#include <cmath>
#include <cstring>

#include "core/cpu/kernels.h"
#include "core/cpu/parallel.h"
// clang-format off
#include "hwy/foreach_target.h"  // before what is compiled once per target
#include "core/cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

template <class X, class Y>
void CastRange(const X* x, Y* y, int64_t begin, int64_t end) {
  const hn::ScalableTag<ComputeOf<X>> d;
  const int64_t lanes = LanesOf(d);
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    StoreFirst(d, LoadFirst(d, x + i, count), y + i, count);
  }
}

template <class S>
void AddRange(const S* x, S* y, int64_t begin, int64_t end) {
  const hn::ScalableTag<ComputeOf<S>> d;
  const int64_t lanes = LanesOf(d);
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t count = std::min(lanes, end - i);
    StoreFirst(d, hn::Add(LoadFirst(d, y + i, count), LoadFirst(d, x + i, count)), y + i, count);
  }
}

void CastImpl(const CastArgs& args) {
  const auto run = [&](const auto* x, auto* y) {
    ParallelFor(args.x.elements(), kElementGrain,
                [&](int64_t begin, int64_t end) { CastRange(x, y, begin, end); });
  };
  if (args.x.dtype() == DType::kF32) {
    run(args.x.data<float>(), args.y.data<bf16>());
  } else {
    run(args.x.data<bf16>(), args.y.data<float>());
  }
}

void AddImpl(const AddArgs& args) {
  ByStorage(args.y.dtype(), [&](auto zero) {
    using S = decltype(zero);
    ParallelFor(args.y.elements(), kElementGrain, [&](int64_t begin, int64_t end) {
      AddRange(args.x.data<S>(), args.y.data<S>(), begin, end);
    });
  });
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace overtok::cpu {

HWY_EXPORT(CastImpl);
HWY_EXPORT(AddImpl);

void Fill(const Context& /*context*/, const FillArgs& args) {
  ByStorage(args.x.dtype(), [&](auto zero) {
    using S = decltype(zero);
    S* x = args.x.data<S>();
    const S value(static_cast<ComputeOf<S>>(args.value));
    ParallelFor(args.x.elements(), kElementGrain, [&](int64_t begin, int64_t end) {
      // +0 has no set bit in any of the types; memset bypasses the caches for large pieces.
      if (args.value == 0 && !std::signbit(args.value)) {
        std::memset(static_cast<void*>(x + begin), 0, static_cast<size_t>(end - begin) * sizeof(S));
      } else {
        std::fill(x + begin, x + end, value);
      }
    });
  });
}

void Cast(const Context& /*context*/, const CastArgs& args) {
  if (args.x.dtype() != args.y.dtype()) {
    HWY_DYNAMIC_DISPATCH(CastImpl)(args);
    return;
  }
  if (args.x.raw() == args.y.raw()) return;
  const int64_t size = SizeOf(args.x.dtype());
  ParallelFor(args.x.elements(), kElementGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(args.y.raw()) + begin * size,
                static_cast<const char*>(args.x.raw()) + begin * size,
                static_cast<size_t>((end - begin) * size));
  });
}

void Add(const Context& /*context*/, const AddArgs& args) { HWY_DYNAMIC_DISPATCH(AddImpl)(args); }

}  // namespace overtok::cpu
#endif

// Lanes of storage: loads that promote bf16, stores that round to nearest even exactly as
// core/bf16.h does (Highway 1.0.3 truncates), rows whose width is no multiple of the vector, and an
// exponential that keeps NaN. Included once per Highway target; no include guard of the usual kind.
#if defined(OVERTOK_CORE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_SIMD_INL_H_
#undef OVERTOK_CORE_CPU_SIMD_INL_H_
#else
#define OVERTOK_CORE_CPU_SIMD_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "core/cpu/storage.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Bits of v rounded to bf16, in the upper half of each lane; the lower half is rubbish.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, D>> Bf16Bits(D /*d*/, hn::Vec<D> v) {
  const hn::Rebind<uint32_t, D> du;
  const auto bits = hn::BitCast(du, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu)));
  const auto quiet = hn::Or(bits, hn::Set(du, 0x00400000u));
  // A comparison: IsNaN is a slower instruction with AVX-512, and casts are bound by it.
  return hn::IfThenElse(hn::RebindMask(du, hn::Eq(v, v)), rounded, quiet);
}

// v as it would come back from bf16 storage.
template <class D>
HWY_INLINE hn::Vec<D> RoundedToBf16(D d, hn::Vec<D> v) {
  const hn::Rebind<uint32_t, D> du;
  return hn::BitCast(d, hn::And(Bf16Bits(d, v), hn::Set(du, 0xffff0000u)));
}

// An intermediate result of an op on activations of storage S: bf16 models round it.
template <class S, class D>
HWY_INLINE hn::Vec<D> Intermediate([[maybe_unused]] D d, hn::Vec<D> v) {
  if constexpr (std::is_same_v<S, bf16>) {
    return RoundedToBf16(d, v);
  } else {
    return v;
  }
}

template <class D, class T>
HWY_INLINE hn::Vec<D> LoadLanes(D d, const T* p) {
  if constexpr (std::is_same_v<T, bf16>) {
    const hn::Rebind<uint16_t, D> du16;
    const hn::Rebind<uint32_t, D> du32;
    const auto bits = hn::LoadU(du16, reinterpret_cast<const uint16_t*>(p));
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du32, bits)));
  } else {
    return hn::LoadU(d, p);
  }
}

template <class D, class T>
HWY_INLINE void StoreLanes(D d, hn::Vec<D> v, T* p) {
  if constexpr (std::is_same_v<T, bf16>) {
    const hn::Rebind<int32_t, D> di32;
    const hn::Rebind<uint16_t, D> du16;
    const auto bits = hn::BitCast(di32, hn::ShiftRight<16>(Bf16Bits(d, v)));
    hn::StoreU(hn::DemoteTo(du16, bits), du16, reinterpret_cast<uint16_t*>(p));
  } else {
    hn::StoreU(v, d, p);
  }
}

// The first `count` lanes, 0 < count <= Lanes(d); the others are zero, and nothing beyond is read.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const T* p, int64_t count) {
  if (HWY_LIKELY(count == static_cast<int64_t>(hn::Lanes(d)))) return LoadLanes(d, p);
  HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
  std::memcpy(static_cast<void*>(lanes), p, static_cast<size_t>(count) * sizeof(T));
  return LoadLanes(d, lanes);
}

template <class D, class T>
HWY_INLINE void StoreFirst(D d, hn::Vec<D> v, T* p, int64_t count) {
  if (HWY_LIKELY(count == static_cast<int64_t>(hn::Lanes(d)))) {
    StoreLanes(d, v, p);
    return;
  }
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  StoreLanes(d, v, lanes);
  std::memcpy(static_cast<void*>(p), lanes, static_cast<size_t>(count) * sizeof(T));
}

template <class D>
HWY_INLINE int64_t LanesOf(D d) {
  return static_cast<int64_t>(hn::Lanes(d));
}

template <class D>
HWY_INLINE hn::TFromD<D> Sum(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// exp(x) within 2 units in the last place (Highway states 1), for any x: overflows to infinity in
// f32, saturates at exp(706) in f64, and a NaN stays one.
template <class D>
HWY_INLINE hn::Vec<D> ExpLanes(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto bounded = hn::Min(x, hn::Set(d, sizeof(T) == 4 ? T(104) : T(706)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Exp(d, bounded));
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// What the norms of norm.cc and rope.cc share.
#if defined(OVERTOK_CORE_CPU_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef OVERTOK_CORE_CPU_NORM_INL_H_
#undef OVERTOK_CORE_CPU_NORM_INL_H_
#else
#define OVERTOK_CORE_CPU_NORM_INL_H_
#endif

#include <cmath>

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace overtok::cpu::HWY_NAMESPACE {

// Rows per piece of a parallel loop, so that a piece is worth a thread.
inline int64_t RowGrain(int64_t width) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, width));
}

// Sum of squares of x[0, width), four running sums so that additions do not wait for each other.
template <class D, class S>
HWY_INLINE hn::TFromD<D> SquareSum(D d, const S* x, int64_t width) {
  const int64_t lanes = LanesOf(d);
  auto s0 = hn::Zero(d), s1 = hn::Zero(d), s2 = hn::Zero(d), s3 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 4 * lanes <= width; i += 4 * lanes) {
    const auto v0 = LoadLanes(d, x + i), v1 = LoadLanes(d, x + i + lanes);
    const auto v2 = LoadLanes(d, x + i + 2 * lanes), v3 = LoadLanes(d, x + i + 3 * lanes);
    s0 = hn::MulAdd(v0, v0, s0);
    s1 = hn::MulAdd(v1, v1, s1);
    s2 = hn::MulAdd(v2, v2, s2);
    s3 = hn::MulAdd(v3, v3, s3);
  }
  for (; i < width; i += lanes) {
    const auto v = LoadFirst(d, x + i, std::min(lanes, width - i));
    s0 = hn::MulAdd(v, v, s0);
  }
  return Sum(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

template <class T>
HWY_INLINE T InverseRms(T square_sum, int64_t width, double eps) {
  return T(1) / std::sqrt(square_sum / static_cast<T>(width) + static_cast<T>(eps));
}

// out[j] = sum over rows of partial[row][j], for j in [begin, end), plus out[j] when accumulate.
template <class T>
void SumRows(const T* partial, int64_t rows, int64_t width, int64_t begin, int64_t end,
             bool accumulate, T* out) {
  const hn::ScalableTag<T> d;
  const int64_t lanes = LanesOf(d);
  for (int64_t j = begin; j < end; j += lanes) {
    const int64_t count = std::min(lanes, end - j);
    auto sum = hn::Zero(d);
    for (int64_t r = 0; r < rows; ++r)
      sum = hn::Add(sum, LoadFirst(d, partial + r * width + j, count));
    if (accumulate) sum = hn::Add(sum, LoadFirst(d, out + j, count));
    StoreFirst(d, sum, out + j, count);
  }
}

}  // namespace overtok::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

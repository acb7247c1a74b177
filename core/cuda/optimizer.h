// What the optimizer kernels share: the clip factor, Adam's arithmetic, and blocks of elements.
//
// Sums: every block of threads sums a fixed range of elements in f64, thread by thread and then by
// BlockSum. Arithmetic that the CPU backend fuses is fused here (fmaf), so that the two differ by
// little else than the order of sums.
#pragma once

#include <type_traits>

#include "core/cuda/kernels.h"
#include "core/ops/blocks.h"

namespace overtok::OT_BACKEND {

// Elements and threads of a block in passes over one matrix or parameter: 4 packs of 4 a thread for
// each operand. A matrix of 1024 x 1024 is 256 blocks then, which fill 132 multiprocessors, while
// the f64 scalars that every thread forms (the clip factor) are shared by 16 elements.
inline constexpr int kPassThreads = 256;
inline constexpr int64_t kPassElements = kPassBlockElements;
static_assert(kPassElements == int64_t{kPassThreads} * 16);
inline int64_t PassBlocks(int64_t n) { return CeilDiv(n, kPassElements); }

// A Clip in kernels; norm_squared is null where nothing is clipped.
struct ClipScalars {
  const double* norm_squared = nullptr;
  double max_norm = 0;
};
inline ClipScalars ScalarsOf(const Clip& clip) {
  if (clip.max_norm == 0) return {};
  return {clip.norm_squared.data<double>(), clip.max_norm};
}
// A norm that is not finite gives a factor that is not: the guard before the update reports it.
__device__ __forceinline__ double ClipFactor(const ClipScalars& clip) {
  if (clip.norm_squared == nullptr) return 1;
  const double norm = sqrt(clip.norm_squared[0]);
  return norm <= clip.max_norm ? 1 : clip.max_norm / norm;
}

// Whether a pass is to write nothing (Clip::halted): asked by all threads before they read or
// write.
inline const uint32_t* HaltedOf(const Tensor& halted) {
  return halted.defined() ? halted.data<uint32_t>() : nullptr;
}
__device__ __forceinline__ bool IsHalted(const uint32_t* halted) {
  return halted != nullptr && *halted != 0;
}

// Adam's constants, rounded once on the host.
struct AdamFactors {
  float beta1, rest1, beta2, rest2, scale1, scale2, eps;

  explicit AdamFactors(const AdamConstants& c)
      : beta1(static_cast<float>(c.beta1)),
        rest1(static_cast<float>(1 - c.beta1)),
        beta2(static_cast<float>(c.beta2)),
        rest2(static_cast<float>(1 - c.beta2)),
        scale1(static_cast<float>(1 / c.correction1)),
        scale2(static_cast<float>(1 / c.correction2)),
        eps(static_cast<float>(c.eps)) {}

  __device__ __forceinline__ float FirstMoment(float m, float g) const {
    return fmaf(beta1, m, rest1 * g);
  }
  __device__ __forceinline__ float SecondMoment(float v, float g) const {
    return fmaf(beta2, v, rest2 * (g * g));
  }
  // (m / correction1) / (sqrt(v / correction2) + eps), by reciprocals of the corrections.
  __device__ __forceinline__ float Update(float m, float v) const {
    return m * scale1 / (sqrtf(v * scale2) + eps);
  }
};

// w <- scale (w - step u): the move on the sphere of |w|^2, <w, u>, |u|^2.
struct SphereMove {
  double scale, step;
};
__device__ __forceinline__ SphereMove MoveOnSphere(double ww, double wu, double uu, double rate) {
  constexpr double kSmallest = 1e-10;
  const double radius = sqrt(ww), length = sqrt(uu);
  const double step = rate * radius / (length < kSmallest ? kSmallest : length);
  // Rounding may leave a vanishing norm below zero.
  const double squared = ww - 2 * step * wu + step * step * uu;
  const double moved = sqrt(squared > 0 ? squared : 0.0);
  return {radius / (moved < kSmallest ? kSmallest : moved), step};
}

// The block's threads share [begin, end) in pieces of N: f(piece size, first element), where the
// size is a constant N, or 1 at the end of a range that is no multiple of N.
template <int N, class F>
__device__ __forceinline__ void ForEachPiece(int64_t begin, int64_t end, const F& f) {
  const int64_t stride = int64_t{blockDim.x} * N;
  for (int64_t at = begin + int64_t{threadIdx.x} * N; at < end; at += stride) {
    if (at + N <= end) {
      f(std::integral_constant<int, N>(), at);
    } else {
      for (int64_t i = at; i < end; ++i) f(std::integral_constant<int, 1>(), i);
    }
  }
}

// Range of elements of this block, where blocks are of `elements` each.
struct Range {
  int64_t begin, end;
};
__device__ __forceinline__ Range BlockRange(int64_t elements, int64_t n) {
  const int64_t begin = int64_t{blockIdx.x} * elements;
  return {begin, begin + elements < n ? begin + elements : n};
}

// Whether packs of N elements from `data` on are aligned.
template <int N, class T>
bool IsAligned(const T* data) {
  return reinterpret_cast<uintptr_t>(data) % (sizeof(T) * N) == 0;
}

// Calls f with std::integral_constant<int, N> where packs can be used, else of 1.
template <int N, class F>
void ByAlignment(bool aligned, const F& f) {
  if (aligned) {
    f(std::integral_constant<int, N>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// total[k] = sum of partial[b * width + k] over b; one block, in a fixed order.
inline constexpr int kJoinThreads = 256;
__device__ __forceinline__ double JoinedSum(const double* partial, int64_t blocks, int64_t width,
                                            int64_t k, double* room) {
  double sum = 0;
  for (int64_t b = threadIdx.x; b < blocks; b += kJoinThreads) sum += partial[b * width + k];
  return BlockSum(sum, room);
}

}  // namespace overtok::OT_BACKEND

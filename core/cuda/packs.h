// Packs of stored values in registers, and what kernels over rows share. bf16 values are held by
// pairs, one register for two, and rounded two at a time: a rounding is then one instruction and a
// half where core/bf16.h's arithmetic on bits takes six, which a pass over memory would notice.
#pragma once

#include <bit>
#include <type_traits>

#include "core/cuda/kernel.h"

namespace overtok::OT_BACKEND {

template <class S, int N>
constexpr bool kPaired = std::is_same_v<S, bf16>&& N % 2 == 0;
template <class S, int N>
using Held = std::conditional_t<kPaired<S, N>, Pack<uint32_t, N / 2>, Pack<S, N>>;

// N values from memory, aligned as LoadPack wants them.
template <int N, class S>
__device__ __forceinline__ Held<S, N> Hold(const S* from) {
  return std::bit_cast<Held<S, N>>(LoadPack<N>(from));
}

// The values of a pack as floats.
template <class S, int N>
__device__ __forceinline__ void Unpack(const Held<S, N>& held, float (&values)[N]) {
  if constexpr (kPaired<S, N>) {
    for (int i = 0; i < N / 2; ++i) {
      values[2 * i] = std::bit_cast<float>(held.v[i] << 16);
      values[2 * i + 1] = std::bit_cast<float>(held.v[i] & 0xffff0000U);
    }
  } else {
    for (int i = 0; i < N; ++i) values[i] = ToFloat(held.v[i]);
  }
}

// Floats rounded to S.
template <class S, int N>
__device__ __forceinline__ Held<S, N> Rounded(const float (&values)[N]) {
  Held<S, N> held;
  if constexpr (kPaired<S, N>) {
    for (int i = 0; i < N / 2; ++i) held.v[i] = PackPair(values[2 * i], values[2 * i + 1]);
  } else {
    for (int i = 0; i < N; ++i) held.v[i] = FromFloat<S>(values[i]);
  }
  return held;
}

// An intermediate result as it would be after storing it as S: bf16 is rounded, f32 stays.
template <class S, int N>
__device__ __forceinline__ void RoundTo(float (&values)[N]) {
  if constexpr (!std::is_same_v<S, float>) Unpack<S, N>(Rounded<S, N>(values), values);
}

template <int N, class S>
__device__ __forceinline__ void StoreRounded(S* to, const float (&values)[N]) {
  StorePack<N>(to, std::bit_cast<Pack<S, N>>(Rounded<S, N>(values)));
}

// N floats, in aligned packs of four at most.
template <int N>
__device__ __forceinline__ void LoadFloats(const float* from, float (&values)[N]) {
  constexpr int kPart = N < 4 ? N : 4;
  for (int i = 0; i < N; i += kPart) {
    const Pack<float, kPart> part = LoadPack<kPart>(from + i);
    for (int k = 0; k < kPart; ++k) values[i + k] = part.v[k];
  }
}
template <int N>
__device__ __forceinline__ void StoreFloats(float* to, const float (&values)[N]) {
  constexpr int kPart = N < 4 ? N : 4;
  for (int i = 0; i < N; i += kPart) {
    Pack<float, kPart> part;
    for (int k = 0; k < kPart; ++k) part.v[k] = values[i + k];
    StorePack<kPart>(to + i, part);
  }
}
// Whether LoadFloats<N> may read rows of `width` floats.
template <int N>
bool FitsFloats(const float* data, int64_t width) {
  return width % N == 0 && FitsPacks<(N < 4 ? N : 4)>(data, width);
}

// Sum over groups of kGroup neighbouring lanes, a power of two; the same bits on all lanes of one.
template <int kGroup>
__device__ __forceinline__ float GroupSum(float value) {
  for (int distance = kGroup / 2; distance > 0; distance /= 2) value += ShuffleXor(value, distance);
  return value;
}

// Calls f(column, index) for each of a thread's packs of N values in a row that kTeam threads
// share: kHeld of them, which it holds by index, or with kHeld = 0 as many as there are, index 0,
// which are read again when they are needed again. member: the thread's number in its team.
template <int N, int kTeam, int kHeld, class F>
__device__ __forceinline__ void ForPacks(int member, int64_t width, const F& f) {
  if constexpr (kHeld > 0) {
    for (int h = 0; h < kHeld; ++h) {
      const int64_t column = int64_t{h * kTeam + member} * N;
      if (column < width) f(column, h);
    }
  } else {
    for (int64_t column = int64_t{member} * N; column < width; column += int64_t{kTeam} * N)
      f(column, 0);
  }
}

}  // namespace overtok::OT_BACKEND

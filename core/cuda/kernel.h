// What kernel sources (core/cuda/*.cu) are written with: the only header that knows which compiler
// reads them. Under nvcc it is CUDA; under the host's compiler it is the emulation
// (core/cuda/emulation/), which runs the very same sources on the CPU and checks them. Sources use
// nothing of CUDA that is not named here: threadIdx, blockIdx, blockDim, gridDim, __global__,
// __device__, __forceinline__, __launch_bounds__, and the functions below.
//
//   Launch("name", context, {grid, block, shared_bytes}, Kernel<float>, arguments...);
//
// Rules for kernels, which the emulation enforces:
//   - shared memory comes from one Shared object, first thing in the kernel, by all threads alike;
//   - Shuffle*, Vote*, SyncWarp, LoadMatrix* and MultiplyTile are called by all 32 threads of a
//     warp, SyncThreads by all threads of the block (none may have returned);
//   - between two barriers no thread writes what another one reads or writes, atomics excepted;
//     what one warp shares is ordered by SyncWarp, not by its other collective calls;
//   - copies that CopyAsync16 started are there after CopyAsyncWait and a barrier, not before;
//   - grids and blocks never depend on anything but sizes, sums never on timing: no atomics on
//     floats.
// No fast math: expf, logf and the like are the accurate ones.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/bf16.h"
#include "core/context.h"
#include "core/tensor.h"

// Before a loop of a constant count whose arrays have to stay in registers; before a rare one whose
// copies would take registers from the rest.
#if defined(__CUDACC__)
#define OT_UNROLL _Pragma("unroll")
#define OT_KEEP_LOOP _Pragma("unroll 1")
#define OT_BACKEND cuda
#else
#define OT_UNROLL
#define OT_KEEP_LOOP
#ifndef OT_BACKEND
#define OT_BACKEND emulated  // or `checked`: the same with every access looked at
#endif
#endif

// One namespace for each way of compiling, so that a program may hold several.
namespace overtok::OT_BACKEND {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;

// Sizes of a launch: blocks, threads of a block, bytes of shared memory (SharedBytes).
struct LaunchShape {
  int64_t blocks = 1;  // gridDim.x, below 2^31
  int threads = 1;     // blockDim.x, at most 1024
  int64_t shared_bytes = 0;
  int64_t blocks_y = 1;  // gridDim.y and z, below 65,536
  int64_t blocks_z = 1;
};

// Bytes that Shared::Take<T>(count) takes.
template <class T>
constexpr int64_t SharedBytes(int64_t count) {
  return (count * static_cast<int64_t>(sizeof(T)) + 15) / 16 * 16;
}
// Most that a block of these kernels may ask for (227 KB on sm_90, 163 KB on sm_80).
inline constexpr int64_t kMaxSharedBytes = 163 * 1024;

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// 16 bytes, or fewer, that move as one.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  T v[N];
};

}  // namespace overtok::OT_BACKEND

#if defined(__CUDACC__)
#include "core/cuda/kernel_cuda.h"
#else
#include "core/cuda/emulation/kernel_emulated.h"
#endif

namespace overtok::OT_BACKEND {

// Aligned loads and stores of N elements; the address is a multiple of sizeof(T) * N.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> LoadPack(const T* from) {
  CheckAligned(from, sizeof(Pack<T, N>));
  return *reinterpret_cast<const Pack<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void StorePack(T* to, const Pack<T, N>& pack) {
  CheckAligned(to, sizeof(Pack<T, N>));
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}

// Whether rows of `width` elements from `data` on can be read in packs of N.
template <int N, class T>
inline bool FitsPacks(const T* data, int64_t width) {
  return width % N == 0 && reinterpret_cast<uintptr_t>(data) % (sizeof(T) * N) == 0;
}

// Values in and out of storage; f32 stays, bf16 is rounded once.
__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(bf16 x) { return static_cast<float>(x); }
template <class S>
__device__ __forceinline__ S FromFloat(float x) {
  return static_cast<S>(x);
}

// Index of this thread in its warp, of its warp in the block.
__device__ __forceinline__ int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ __forceinline__ int WarpIndex() { return static_cast<int>(threadIdx.x) / kWarp; }

// Sum (maximum) over the warp's 32 lanes, the same bits on all of them: a butterfly.
template <class T>
__device__ __forceinline__ T WarpSum(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += ShuffleXor(value, distance);
  return value;
}
template <class T>
__device__ __forceinline__ T WarpMax(T value) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const T other = ShuffleXor(value, distance);
    value = value < other ? other : value;
  }
  return value;
}

// Sum over the block, the same bits on all threads; `room`: shared, one T for each warp, free
// before (a barrier stands between its last use and this) and after the call. All threads call.
template <class T>
__device__ __forceinline__ T BlockSum(T value, T* room) {
  value = WarpSum(value);
  if (Lane() == 0) room[WarpIndex()] = value;
  SyncThreads();
  const int warps = (static_cast<int>(blockDim.x) + kWarp - 1) / kWarp;
  T sum = room[0];
  for (int w = 1; w < warps; ++w) sum += room[w];
  SyncThreads();
  return sum;
}
template <class T>
__device__ __forceinline__ T BlockMax(T value, T* room) {
  value = WarpMax(value);
  if (Lane() == 0) room[WarpIndex()] = value;
  SyncThreads();
  const int warps = (static_cast<int>(blockDim.x) + kWarp - 1) / kWarp;
  T most = room[0];
  for (int w = 1; w < warps; ++w) most = most < room[w] ? room[w] : most;
  SyncThreads();
  return most;
}

// Calls f with a value of the storage type of activations: f(float()) or f(bf16()).
template <class F>
void ByActivation(DType dtype, const char* op, const F& f) {
  switch (dtype) {
    case DType::kF32:
      return f(float{});
    case DType::kBF16:
      return f(bf16{});
    default:
      OT_CHECK(false) << "the CUDA backend has no " << op << " for " << NameOf(dtype);
  }
}

}  // namespace overtok::OT_BACKEND

// core/cuda/kernel.h under nvcc. Included by it alone.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "core/check.h"

namespace overtok::OT_BACKEND {

// Shared memory of the block: pieces of the launch's shared_bytes, 16-byte aligned, uninitialised.
class Shared {
 public:
  __device__ Shared() {
    extern __shared__ uint4 overtok_shared[];
    next_ = reinterpret_cast<char*>(overtok_shared);
  }
  template <class T>
  __device__ __forceinline__ T* Take(int64_t count) {
    T* taken = reinterpret_cast<T*>(next_);
    next_ += SharedBytes<T>(count);
    return taken;
  }

 private:
  char* next_;
};

// The hardware does.
__device__ __forceinline__ void CheckAligned(const void*, uint64_t) {}

__device__ __forceinline__ void SyncThreads() { __syncthreads(); }
__device__ __forceinline__ void SyncWarp() { __syncwarp(); }

// Of 4- and 8-byte types: the value of the lane at `lane ^ distance`, at `lane`.
template <class T>
__device__ __forceinline__ T ShuffleXor(T value, int distance) {
  return __shfl_xor_sync(kAllLanes, value, distance);
}
template <class T>
__device__ __forceinline__ T Shuffle(T value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
// Of the lane `distance` below; its own where there is none.
template <class T>
__device__ __forceinline__ T ShuffleUp(T value, int distance) {
  return __shfl_up_sync(kAllLanes, value, static_cast<unsigned>(distance));
}
// Bit l: whether lane l's flag is set.
__device__ __forceinline__ unsigned VoteBallot(bool flag) { return __ballot_sync(kAllLanes, flag); }
__device__ __forceinline__ int CountBits(unsigned x) { return __popc(x); }

// Ends the program: a kernel found what can only be a bug. `why` is told by the emulation; a GPU
// fails the stream, which the host's next wait reports.
__device__ __forceinline__ void Trap(const char* /*why*/) { __trap(); }

// On global or shared integers; the value before.
__device__ __forceinline__ unsigned AtomicAdd(unsigned* at, unsigned x) { return atomicAdd(at, x); }
__device__ __forceinline__ int AtomicAdd(int* at, int x) { return atomicAdd(at, x); }
__device__ __forceinline__ unsigned AtomicOr(unsigned* at, unsigned x) { return atomicOr(at, x); }
__device__ __forceinline__ uint64_t AtomicAdd(uint64_t* at, uint64_t x) {
  return atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(x));
}

// 16 bytes from global to shared memory, both 16-byte aligned, without waiting; zeros when not
// `valid` (nothing is read then).
__device__ __forceinline__ void CopyAsync16(void* shared, const void* global, bool valid = true) {
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(global), "r"(bytes)
               : "memory");
}
// Closes this thread's group of copies; waits until at most `kOpen` groups are still under way.
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int kOpen>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kOpen) : "memory");
}

// Four 8 x 8 tiles of bf16 from shared memory, in the layout that MultiplyTile reads: lane l gives
// the address of row l % 8 of tile l / 8 (16 bytes, aligned) and receives elements 2 (l % 4) and
// 2 (l % 4) + 1 of row l / 4 of every tile, the lower one in the lower half. Transposed: of column
// l / 4, rows 2 (l % 4) and + 1.
__device__ __forceinline__ void LoadMatrix4(uint32_t (&tiles)[4], const bf16* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(from)
               : "memory");
}
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&tiles)[4], const bf16* row) {
  const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3])
               : "r"(from)
               : "memory");
}

// d += a b on tensor cores: a [16, 16] and b [16, 8] bf16, d [16, 8] f32 (mma.m16n8k16). Lane l,
// r = l / 4, c = 2 (l % 4), pairs of columns (of a, d) or rows (of b) from c on:
//   a[0]: row r, column c   a[1]: row r + 8, c   a[2]: row r, c + 8   a[3]: row r + 8, c + 8
//   b[0]: rows c, c + 1 of column r              b[1]: rows c + 8, c + 9 of column r
//   d[0], d[1]: row r, columns c, c + 1          d[2], d[3]: row r + 8
__device__ __forceinline__ void MultiplyTile(float (&d)[4], const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Two floats rounded to bf16, `low` in the lower half.
__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// 2^x with a relative error below 2^-22; 0 below 2^-126.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// Starts a kernel on the context's stream.
template <class... Parameters, class... Arguments>
void Launch(const char* name, const Context& context, const LaunchShape& shape,
            void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (shape.shared_bytes > 48 * 1024) {
    OT_CHECK_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     static_cast<int>(shape.shared_bytes)),
                cudaSuccess)
        << name << " asks for " << shape.shared_bytes << " bytes of shared memory";
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>(shape.blocks_y),
                        static_cast<unsigned>(shape.blocks_z));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = static_cast<cudaStream_t>(context.stream());
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  OT_CHECK_EQ(error, cudaSuccess) << name << ": " << cudaGetErrorString(error);
}

}  // namespace overtok::OT_BACKEND

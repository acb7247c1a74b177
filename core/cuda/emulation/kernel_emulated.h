// core/cuda/kernel.h under the host's compiler: the same names, run by the emulator. What each
// function does is said in core/cuda/kernel_cuda.h. Included by core/cuda/kernel.h alone.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/cuda/emulation/emulator.h"
#include "core/cuda/emulation/queues.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#if defined(OT_CHECKED)
#define threadIdx (::overtok::emulation::ThreadIndex())
#define blockIdx (::overtok::emulation::BlockIndex())
#define blockDim (::overtok::emulation::BlockSize())
#define gridDim (::overtok::emulation::GridSize())
#else
#define threadIdx (::overtok::emulation::current_thread->index)
#define blockIdx (::overtok::emulation::current_block->index)
#define blockDim (::overtok::emulation::current_block->size)
#define gridDim (::overtok::emulation::current_block->grid)
#endif

namespace overtok::OT_BACKEND {

class Shared {
 public:
  template <class T>
  T* Take(int64_t count) {
    return static_cast<T*>(emulation::TakeShared(SharedBytes<T>(count), &taken_));
  }

 private:
  int64_t taken_ = 0;
};

// Packs move as one on a GPU, which refuses addresses that are no multiples of their size.
inline void CheckAligned(const void* at, uint64_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes != 0) emulation::Misaligned(at, bytes);
}

inline void SyncThreads() { emulation::Barrier(); }
inline void SyncWarp() {
  emulation::CallWarp({.name = "SyncWarp",
                       .combine = [](void* const*) {},
                       .operands = nullptr,
                       .orders_memory = true});
}

namespace internal {

// A shuffle: every lane gives a value and the lane whose value it wants.
template <class T>
struct ShuffleOperands {
  T value, result;
  int from;
};
template <class T>
T ShuffleFrom(const char* name, T value, int from) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  ShuffleOperands<T> mine = {value, value, from};
  emulation::CallWarp({.name = name,
                       .combine =
                           [](void* const* lanes) {
                             for (int l = 0; l < kWarp; ++l) {
                               auto* lane = static_cast<ShuffleOperands<T>*>(lanes[l]);
                               lane->result =
                                   static_cast<ShuffleOperands<T>*>(lanes[lane->from])->value;
                             }
                           },
                       .operands = &mine});
  return mine.result;
}
inline int ThisLane() { return static_cast<int>(threadIdx.x) % kWarp; }

}  // namespace internal

template <class T>
T ShuffleXor(T value, int distance) {
  return internal::ShuffleFrom("ShuffleXor", value, (internal::ThisLane() ^ distance) % kWarp);
}
template <class T>
T Shuffle(T value, int lane) {
  return internal::ShuffleFrom("Shuffle", value, lane % kWarp);
}
template <class T>
T ShuffleUp(T value, int distance) {
  const int from = internal::ThisLane() - distance;
  return internal::ShuffleFrom("ShuffleUp", value, from < 0 ? internal::ThisLane() : from);
}
inline unsigned VoteBallot(bool flag) {
  struct Operands {
    bool flag;
    unsigned result;
  } mine = {flag, 0};
  emulation::CallWarp({.name = "VoteBallot",
                       .combine =
                           [](void* const* lanes) {
                             unsigned bits = 0;
                             for (int l = 0; l < kWarp; ++l) {
                               if (static_cast<Operands*>(lanes[l])->flag) bits |= 1U << l;
                             }
                             for (int l = 0; l < kWarp; ++l)
                               static_cast<Operands*>(lanes[l])->result = bits;
                           },
                       .operands = &mine});
  return mine.result;
}
inline int CountBits(unsigned x) { return std::popcount(x); }

inline void Trap(const char* why) { emulation::Trap(why); }

inline unsigned AtomicAdd(unsigned* at, unsigned x) {
  return std::atomic_ref<unsigned>(*at).fetch_add(x, std::memory_order_relaxed);
}
inline int AtomicAdd(int* at, int x) {
  return std::atomic_ref<int>(*at).fetch_add(x, std::memory_order_relaxed);
}
inline unsigned AtomicOr(unsigned* at, unsigned x) {
  return std::atomic_ref<unsigned>(*at).fetch_or(x, std::memory_order_relaxed);
}
inline uint64_t AtomicAdd(uint64_t* at, uint64_t x) {
  return std::atomic_ref<uint64_t>(*at).fetch_add(x, std::memory_order_relaxed);
}

inline void CopyAsync16(void* shared, const void* global, bool valid = true) {
  emulation::CopyLater(shared, valid ? global : nullptr);
}
inline void CopyAsyncCommit() { emulation::CloseGroup(); }
template <int kOpen>
void CopyAsyncWait() {
  emulation::WaitForGroups(kOpen);
}

namespace internal {

struct LoadOperands {
  const bf16* row;
  uint32_t* tiles;
};
inline uint32_t PairOf(bf16 low, bf16 high) {
  return static_cast<uint32_t>(low.bits) | static_cast<uint32_t>(high.bits) << 16;
}
template <bool kTransposed>
void CombineLoad(void* const* lanes) {
  const auto at = [&](int lane) -> LoadOperands& {
    return *static_cast<LoadOperands*>(lanes[lane]);
  };
  for (int tile = 0; tile < 4; ++tile) {
    for (int l = 0; l < kWarp; ++l) {
      const int r = l / 4, c = 2 * (l % 4);
      const auto element = [&](int row, int column) { return at(8 * tile + row).row[column]; };
      at(l).tiles[tile] = kTransposed ? PairOf(element(c, r), element(c + 1, r))
                                      : PairOf(element(r, c), element(r, c + 1));
    }
  }
}

struct TileOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
};
// The products in the order of k, as exact as f32 makes them (products of bf16 are exact in f32).
inline void CombineTile(void* const* lanes) {
  const auto half = [](uint32_t pair, int which) {
    return std::bit_cast<float>(which == 0 ? pair << 16 : pair & 0xffff0000U);
  };
  float a[16][16], b[16][8];
  for (int l = 0; l < kWarp; ++l) {
    const auto& lane = *static_cast<TileOperands*>(lanes[l]);
    const int r = l / 4, c = 2 * (l % 4);
    for (int i = 0; i < 2; ++i) {
      for (int part = 0; part < 4; ++part)
        a[r + 8 * (part % 2)][c + 8 * (part / 2) + i] = half(lane.a[part], i);
      b[c + i][r] = half(lane.b[0], i);
      b[c + 8 + i][r] = half(lane.b[1], i);
    }
  }
  for (int l = 0; l < kWarp; ++l) {
    const auto& lane = *static_cast<TileOperands*>(lanes[l]);
    const int r = l / 4, c = 2 * (l % 4);
    for (int part = 0; part < 4; ++part) {
      const int row = r + 8 * (part / 2), column = c + part % 2;
      float sum = lane.d[part];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      lane.d[part] = sum;
    }
  }
}

}  // namespace internal

inline void LoadMatrix4(uint32_t (&tiles)[4], const bf16* row) {
  emulation::ReadRow("LoadMatrix4", row);
  internal::LoadOperands mine = {row, tiles};
  emulation::CallWarp(
      {.name = "LoadMatrix4", .combine = internal::CombineLoad<false>, .operands = &mine});
}
inline void LoadMatrix4Transposed(uint32_t (&tiles)[4], const bf16* row) {
  emulation::ReadRow("LoadMatrix4Transposed", row);
  internal::LoadOperands mine = {row, tiles};
  emulation::CallWarp(
      {.name = "LoadMatrix4Transposed", .combine = internal::CombineLoad<true>, .operands = &mine});
}
inline void MultiplyTile(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  internal::TileOperands mine = {d, a, b};
  emulation::CallWarp(
      {.name = "MultiplyTile", .combine = internal::CombineTile, .operands = &mine});
}
inline float Exp2(float x) { return x < -126.0F ? 0.0F : std::exp2(x); }
inline uint32_t PackPair(float low, float high) { return internal::PairOf(bf16(low), bf16(high)); }

template <class... Parameters, class... Arguments>
void Launch(const char* name, const Context& context, const LaunchShape& shape,
            void (*kernel)(Parameters...), Arguments&&... arguments) {
  OT_CHECK(shape.blocks > 0 && shape.blocks < int64_t{1} << 31 && shape.blocks_y > 0 &&
           shape.blocks_y < 65536 && shape.blocks_z > 0 && shape.blocks_z < 65536 &&
           shape.threads > 0 && shape.threads <= 1024 && shape.shared_bytes <= kMaxSharedBytes)
      << name << ": no GPU runs this grid";
  const auto call = [kernel, ... a = static_cast<Parameters>(arguments)] { kernel(a...); };
  const emulation::Grid grid = {shape.blocks, shape.blocks_y, shape.blocks_z, shape.threads,
                                shape.shared_bytes};
#if defined(OT_CHECKED)
  constexpr bool kChecked = true;
#else
  constexpr bool kChecked = false;
#endif
  using Call = decltype(call);
  const auto run = [name, grid, call] {
    emulation::Run(
        name, grid, kChecked, [](const void* argument) { (*static_cast<const Call*>(argument))(); },
        &call, static_cast<int64_t>(sizeof(call)));
  };
  if (emulation::Delays()) {
    emulation::Enqueue(context.stream_name(), run);
  } else {
    run();
  }
}

}  // namespace overtok::OT_BACKEND

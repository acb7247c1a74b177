// The emulator: runs a grid on the host, block by block, with one fiber per thread of a block.
// Barriers and collective calls of a warp suspend a fiber until all that have to take part have
// come; that they differ, or that some never come, is a divergence and ends the program with the
// names of kernel, block and threads. Blocks are independent and run on all of OpenMP's threads;
// where accesses are checked (core/cuda/emulation/checker.h) one after another.
//
// Order: the 32 threads of a warp run until each waits or has returned, lane by lane; then the
// next warp. Correct kernels do not see it.
#pragma once

#include <cstdint>

namespace overtok::emulation {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

// What a fiber waits for. Collective calls of a warp hand over their operands; the last lane to
// come has them combined (`combine`, given the operands of all 32 lanes) and all go on.
struct WarpCall {
  const char* name = nullptr;
  void (*combine)(void* const* operands) = nullptr;
  void* operands = nullptr;
};

// One thread of the block that runs on this OS thread.
struct Thread {
  Index3 index;         // threadIdx
  uint32_t number = 0;  // of all threads in the block
  // Barriers of the block, and collective calls of the warp, that the thread has passed: two
  // accesses of different threads are ordered where one of them lies between.
  uint32_t block_phase = 0, warp_phase = 0;
};
struct Block {
  Index3 index, size, grid;  // blockIdx, blockDim, gridDim
  const char* kernel = "";
  int64_t number = 0;  // of all blocks in the launch
};

// Of the calling OS thread; null outside a kernel.
extern thread_local Thread* current_thread;
extern thread_local Block* current_block;

struct Grid {
  int64_t blocks_x = 1, blocks_y = 1, blocks_z = 1;
  int threads = 1;
  int64_t shared_bytes = 0;
};

// Runs `body(argument)` once for each thread of the grid and returns when all have. `checked`: the
// code of the kernel reports its accesses.
void Run(const char* kernel, const Grid& grid, bool checked, void (*body)(const void*),
         const void* argument);

// Called by kernels.
void Barrier();
void CallWarp(const WarpCall& call);
// The next `bytes` of shared memory, 16-byte aligned; `taken`: of this thread so far, moved on. All
// threads of a block ask for the same pieces in the same order. Between pieces lie guard zones.
void* TakeShared(int64_t bytes, int64_t* taken);
// Of asynchronous copies: done when the group is waited for, zeros when from is null.
void CopyLater(void* shared, const void* from);
void CloseGroup();
void WaitForGroups(int open);

}  // namespace overtok::emulation

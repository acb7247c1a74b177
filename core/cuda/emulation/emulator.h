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
  // What lanes wrote before the call, others may read after it: SyncWarp alone promises that.
  bool orders_memory = false;
};

// One thread of the block that runs on this OS thread.
struct Thread {
  Index3 index;         // threadIdx
  uint32_t number = 0;  // of all threads in the block
};
struct Block {
  Index3 index, size, grid;  // blockIdx, blockDim, gridDim
  const char* kernel = "";
  int64_t number = 0;  // of all blocks in the launch
};

// Of the calling OS thread; null outside a kernel.
extern constinit thread_local Thread* current_thread;
extern constinit thread_local Block* current_block;
// The same for code whose accesses are reported: nothing of the host's is read there.
Index3 ThreadIndex();
Index3 BlockIndex();
Index3 BlockSize();
Index3 GridSize();

struct Grid {
  int64_t blocks_x = 1, blocks_y = 1, blocks_z = 1;
  int threads = 1;
  int64_t shared_bytes = 0;
};

// Runs `body(argument)` once for each thread of the grid and returns when all have. `checked`: the
// code of the kernel reports its accesses; it may read `argument_bytes` at `argument`.
void Run(const char* kernel, const Grid& grid, bool checked, void (*body)(const void*),
         const void* argument, int64_t argument_bytes);

// While one lives, launches run their blocks from the last to the first. Results do not depend on
// it; that is for tests to see.
class ReversedBlocks {
 public:
  ReversedBlocks();
  ~ReversedBlocks();
  ReversedBlocks(const ReversedBlocks&) = delete;
  ReversedBlocks& operator=(const ReversedBlocks&) = delete;
};

// Called by kernels.
void Barrier();
void CallWarp(const WarpCall& call);
// The next `bytes` of shared memory, 16-byte aligned; `taken`: of this thread so far, moved on. All
// threads of a block ask for the same pieces in the same order. Between pieces lie guard zones.
// Pieces are filled with 0xFF: NaN in the float types.
void* TakeShared(int64_t bytes, int64_t* taken);
// Of asynchronous copies: done when the group is waited for, zeros when from is null.
void CopyLater(void* shared, const void* from);
void CloseGroup();
void WaitForGroups(int open);
// Ends the program.
[[noreturn]] void Misaligned(const void* at, uint64_t bytes);
// The running thread reads 16 aligned bytes, in a collective call.
void ReadRow(const char* call, const void* row);

// Ends the program with the kernel's name.
[[noreturn]] void Trap(const char* why);

}  // namespace overtok::emulation

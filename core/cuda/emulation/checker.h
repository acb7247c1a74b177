// The checker: looks at every memory access of a kernel that was compiled to report them (the
// `checked` flavour) and ends the program, naming kernel, block, thread and tensor, at the first
// one that
//   - lies outside the blocks that kernels may touch (known_memory.h), outside the pieces of shared
//     memory that the block has taken, or in memory of the host or of another thread;
//   - races: two accesses of one byte by different threads, one of them a write, not both atomic,
//     and nothing in between that orders them: a barrier of the block, or of the warp; blocks of
//     one launch are never ordered;
//   - reads a byte that nobody has written: shared memory at first, and what was marked;
//   - touches bytes that an asynchronous copy is under way to;
//   - is not aligned as its type asks for, which a GPU refuses.
// Accesses are told in the order in which the emulator runs the threads, but judged by what orders
// them, so that a race is found whether or not the order at hand makes it harmless.
//
// A clock ticks at every launch, block and barrier. Per byte there are two words, of writes and of
// reads: the time of the last one, its thread, and whether others did the same since the last
// barrier. An earlier access is ordered before the present one when its time lies before the last
// barrier of the block, before the last one of their common warp, or before the launch.
//
// One launch is checked at a time; the emulator runs its blocks one after another.
#pragma once

#include <cstdint>

namespace overtok::emulation {

// Of the OS thread: whether accesses are looked at now (a kernel's own code runs), and where the
// running thread's stack lies, which is nobody else's business.
struct Watch {
  bool on = false;
  uintptr_t stack = 0, stack_bytes = 0;
};
extern constinit thread_local Watch watch;

enum class Access : uint8_t {
  kRead,
  kWrite,
  kAtomic,
  kCopyBegins,  // to shared memory, asynchronously
  kCopyEnds,    // it was waited for
};

void CheckAccess(uintptr_t at, int64_t bytes, Access access);

// By the code of kernels, and by the emulator on behalf of the running thread.
inline void Touch(const volatile void* at, int64_t bytes, Access access) {
  if (!watch.on) return;
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (address - watch.stack < watch.stack_bytes) return;
  CheckAccess(address, bytes, access);
}

// The same at a multiple of `bytes`.
[[noreturn]] void FailAlignment(uintptr_t at, int64_t bytes, Access access);
inline void TouchAligned(const volatile void* at, int64_t bytes, Access access) {
  if (!watch.on) return;
  const auto address = reinterpret_cast<uintptr_t>(at);
  if (address % static_cast<uintptr_t>(bytes) != 0) FailAlignment(address, bytes, access);
  if (address - watch.stack < watch.stack_bytes) return;
  CheckAccess(address, bytes, access);
}

// Accesses of the emulator itself, in a function that a kernel called.
class Unwatched {
 public:
  Unwatched() : before_(watch.on) { watch.on = false; }
  ~Unwatched() { watch.on = before_; }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;

 private:
  bool before_;
};

// Told by the emulator. A launch's arguments lie on the host, for all its threads to read. Between
// the two, the launch is the only one that is checked.
void CheckedLaunchBegins(const char* kernel, const void* arguments, int64_t argument_bytes);
void CheckedLaunchEnds();
// `stacks`: of all fibers of the OS thread.
void CheckedBlockBegins(int64_t number, const void* shared, int64_t shared_bytes,
                        const void* stacks, int64_t stack_bytes);
void CheckedPiece(const void* piece, int64_t bytes);
void CheckedBarrier();
void CheckedWarpBarrier(uint32_t warp);

}  // namespace overtok::emulation

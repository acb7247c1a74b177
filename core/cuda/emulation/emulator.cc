#include "core/cuda/emulation/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/emulation/checker.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/emulation/fiber.h"

namespace overtok::emulation {

constinit thread_local Thread* current_thread = nullptr;
constinit thread_local Block* current_block = nullptr;

Index3 ThreadIndex() { return current_thread->index; }
Index3 BlockIndex() { return current_block->index; }
Index3 BlockSize() { return current_block->size; }
Index3 GridSize() { return current_block->grid; }

namespace {

constexpr size_t kLanes = 32, kMostThreads = 1024;
constexpr size_t kStackBytes = size_t{128} << 10;  // of a fiber; only touched pages exist
constexpr size_t kStackShift = 1024 + 64;
constexpr int64_t kGuardBytes = 256;  // between pieces of shared memory
constexpr unsigned char kGuardByte = 0xA5;
constexpr int64_t kMostPieces = 64;

std::atomic<int> reversed{0};

enum class State : uint8_t { kReady, kAtBarrier, kInWarpCall, kReturned };

struct Copy {
  void* to;
  const void* from;
};

// A fiber runs thread after thread: one that never waits costs two switches and no new stack.
struct Fiber {
  Stack stack;
  State state = State::kReturned;
  Thread thread;
  WarpCall call;
  // Copies under way, those of `closed` groups first; the sizes of these. Both from `done` on.
  std::vector<Copy> copies;
  std::vector<size_t> closed;
  size_t copies_done = 0, groups_done = 0, in_groups = 0;
};

// The block that runs on one OS thread, and the fibers, which live as long as that. A fiber that
// waits switches to the next one of its warp that can run; the scheduler, on the OS thread's own
// stack, is only asked when there is none.
class Runner {
 public:
  ~Runner() {
    for (Fiber& fiber : fibers_) StackSwitch::Unmake(fiber.stack);
    if (stacks_ != nullptr) munmap(stacks_, kMostThreads * kStackBytes);
  }

  void RunBlock(const char* kernel, const Grid& grid, int64_t number, bool checked,
                void (*body)(const void*), const void* argument);
  void Suspend(State state);
  Fiber& running() { return *running_; }
  void* TakeShared(int64_t bytes, int64_t* taken);

 private:
  static void Main(boost::context::detail::transfer_t from);
  void Grow(size_t threads);
  void Become(Fiber& fiber);
  Fiber* NextReady(size_t after);
  bool RunWarp(size_t first, size_t end);
  bool CombineWarp();
  bool PassBarrier();
  void CheckGuards() const;
  [[noreturn]] void Diverged(const std::string& what) const;

  std::vector<Fiber> fibers_;  // never moved: there is room for all from the start
  char* stacks_ = nullptr;
  StackSwitch switch_;
  Stack scheduler_;
  Fiber* running_ = nullptr;
  size_t first_ = 0, end_ = 0;  // threads of the warp that runs
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  Block block_;
  size_t threads_ = 0;
  bool checked_ = false;
  std::unique_ptr<unsigned char[]> shared_room_;
  unsigned char* shared_ = nullptr;  // 128-byte aligned
  int64_t shared_capacity_ = 0, shared_bytes_ = 0;
  std::array<int64_t, kMostPieces> pieces_{};  // bytes of each piece taken in this block
  int64_t piece_count_ = 0;
};

thread_local Runner* active = nullptr;

std::string Place(const Fiber& fiber) { return absl::StrCat("thread ", fiber.thread.number); }

void Runner::Main(boost::context::detail::transfer_t from) {
  auto* runner = static_cast<Runner*>(from.data);
  runner->switch_.Arrived(from, nullptr);
  for (;;) {
    // The stack is one fiber's, whichever thread it runs.
    Fiber& fiber = *runner->running_;
    runner->Become(fiber);
    runner->body_(runner->argument_);
    watch.on = false;
    OT_CHECK_EQ(fiber.copies_done, fiber.copies.size())
        << runner->block_.kernel << ": a thread returned with copies under way";
    fiber.copies.clear();
    fiber.closed.clear();
    fiber.copies_done = fiber.groups_done = fiber.in_groups = 0;
    runner->Suspend(State::kReturned);
  }
}

void Runner::Grow(size_t threads) {
  if (stacks_ == nullptr) {
    void* stacks = mmap(nullptr, kMostThreads * kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    OT_CHECK(stacks != MAP_FAILED) << "no address space for the emulator's stacks";
    stacks_ = static_cast<char*>(stacks);
    fibers_.reserve(kMostThreads);
  }
  while (fibers_.size() < threads) {
    char* low = stacks_ + fibers_.size() * kStackBytes;
    // The lowest page of every stack is not there: an overflow stops at once.
    OT_CHECK_EQ(mprotect(low, 4096, PROT_NONE), 0);
    // Stacks begin at different places of the caches' sets: lanes of a warp use them in turn.
    const size_t shift = fibers_.size() % kLanes * kStackShift;
    StackSwitch::Make(fibers_.emplace_back().stack, low, kStackBytes - shift, Main);
  }
}

// On the fiber's stack: its thread's code goes on.
void Runner::Become(Fiber& fiber) {
  current_thread = &fiber.thread;
  if (checked_) {
    watch.stack = reinterpret_cast<uintptr_t>(fiber.stack.low);
    watch.stack_bytes = kStackBytes;
    watch.on = true;
  }
}

// Of the warp that runs, beginning with the lane after `after`; null: none.
Fiber* Runner::NextReady(size_t after) {
  for (size_t i = after + 1; i < end_; ++i)
    if (fibers_[i].state == State::kReady) return &fibers_[i];
  for (size_t i = first_; i <= after && i < end_; ++i)
    if (fibers_[i].state == State::kReady) return &fibers_[i];
  return nullptr;
}

void Runner::Suspend(State state) {
  Fiber& fiber = *running_;
  watch.on = false;
  fiber.state = state;
  Fiber* next = NextReady(fiber.thread.number);
  if (next == nullptr && state == State::kInWarpCall && CombineWarp()) next = &fiber;
  if (next != &fiber) {
    current_thread = nullptr;
    running_ = next;
    switch_.Switch(fiber.stack, next != nullptr ? next->stack : scheduler_, this);
  }
  // Main begins the next thread itself.
  if (state != State::kReturned) Become(fiber);
}

// Threads [first, end) of one warp until each waits at the block's barrier or has returned.
bool Runner::RunWarp(size_t first, size_t end) {
  first_ = first;
  end_ = end;
  bool moved = false;
  do {
    running_ = NextReady(end - 1);
    if (running_ == nullptr) break;
    moved = true;
    switch_.Switch(scheduler_, running_->stack, this);
    current_thread = nullptr;
  } while (CombineWarp());
  return moved;
}

// With no lane of the warp ready: true when a collective call was carried out, so that its lanes
// can go on.
bool Runner::CombineWarp() {
  const WarpCall* call = nullptr;
  std::array<void*, kLanes> operands{};
  const Fiber *in = nullptr, *out = nullptr;
  for (size_t i = first_; i < end_; ++i) {
    const Fiber& fiber = fibers_[i];
    if (fiber.state != State::kInWarpCall ||
        (call != nullptr &&
         (fiber.call.combine != call->combine ||
          (fiber.call.name != call->name && std::strcmp(fiber.call.name, call->name) != 0)))) {
      out = &fiber;
      continue;
    }
    call = &fiber.call;
    in = &fiber;
    operands[i - first_] = fiber.call.operands;
  }
  if (in == nullptr) return false;
  if (out != nullptr) {
    Diverged(absl::StrCat(Place(*in), " is in ", call->name, ", ", Place(*out),
                          " of the same warp is not"));
  }
  if (end_ - first_ < kLanes) {
    Diverged(absl::StrCat(call->name, " in a warp of ", end_ - first_,
                          " threads: blocks have whole warps where threads call it"));
  }
  if (checked_ && call->orders_memory) CheckedWarpBarrier(static_cast<uint32_t>(first_ / kLanes));
  call->combine(operands.data());
  for (size_t i = first_; i < end_; ++i) fibers_[i].state = State::kReady;
  return true;
}

// With no thread ready: whether a barrier was passed.
bool Runner::PassBarrier() {
  size_t waiting = 0;
  const Fiber* returned = nullptr;
  for (size_t i = 0; i < threads_; ++i) {
    if (fibers_[i].state == State::kAtBarrier) {
      ++waiting;
    } else {
      returned = &fibers_[i];
    }
  }
  if (waiting == 0) return false;
  if (returned != nullptr) {
    Diverged(
        absl::StrCat(waiting, " threads wait at SyncThreads, ", Place(*returned), " has returned"));
  }
  for (size_t i = 0; i < threads_; ++i) fibers_[i].state = State::kReady;
  if (checked_) CheckedBarrier();
  return true;
}

void Runner::RunBlock(const char* kernel, const Grid& grid, int64_t number, bool checked,
                      void (*body)(const void*), const void* argument) {
  threads_ = static_cast<size_t>(grid.threads);
  Grow(threads_);
  checked_ = checked;
  body_ = body;
  argument_ = argument;
  block_.kernel = kernel;
  block_.number = number;
  block_.index = {static_cast<unsigned>(number % grid.blocks_x),
                  static_cast<unsigned>(number / grid.blocks_x % grid.blocks_y),
                  static_cast<unsigned>(number / grid.blocks_x / grid.blocks_y)};
  block_.size = {static_cast<unsigned>(grid.threads), 1, 1};
  block_.grid = {static_cast<unsigned>(grid.blocks_x), static_cast<unsigned>(grid.blocks_y),
                 static_cast<unsigned>(grid.blocks_z)};
  shared_bytes_ = grid.shared_bytes;
  const int64_t room = shared_bytes_ + (kMostPieces + 1) * kGuardBytes;
  if (room > shared_capacity_) {
    shared_room_ = std::make_unique<unsigned char[]>(static_cast<size_t>(room + 128));
    const auto base = reinterpret_cast<uintptr_t>(shared_room_.get());
    shared_ = shared_room_.get() + ((base + 127) / 128 * 128 - base);
    shared_capacity_ = room;
  }
  piece_count_ = 0;
  if (checked_) {
    CheckedBlockBegins(number, shared_, shared_capacity_, stacks_,
                       static_cast<int64_t>(kMostThreads * kStackBytes));
  }
  Runner* const outer = active;
  Block* const outer_block = current_block;
  active = this;
  current_block = &block_;
  for (size_t i = 0; i < threads_; ++i) {
    Fiber& fiber = fibers_[i];
    OT_CHECK(fiber.state == State::kReturned);
    fiber.state = State::kReady;
    fiber.thread.index.x = static_cast<unsigned>(i);
    fiber.thread.number = static_cast<uint32_t>(i);
  }
  do {
    for (size_t first = 0; first < threads_; first += kLanes)
      RunWarp(first, std::min(threads_, first + kLanes));
  } while (PassBarrier());
  CheckGuards();
  active = outer;
  current_block = outer_block;
}

void* Runner::TakeShared(int64_t bytes, int64_t* taken) {
  // `taken` counts pieces of the calling thread; all threads take the same ones.
  const int64_t piece = (*taken)++;
  OT_CHECK_LT(piece, kMostPieces) << block_.kernel;
  int64_t before = 0;
  for (int64_t i = 0; i < piece; ++i) before += pieces_[static_cast<size_t>(i)];
  unsigned char* at = shared_ + before + (piece + 1) * kGuardBytes;
  if (piece == piece_count_) {
    OT_CHECK_LE(before + bytes, shared_bytes_)
        << block_.kernel << " takes more shared memory than it was launched with";
    pieces_[static_cast<size_t>(piece_count_++)] = bytes;
    std::memset(at - kGuardBytes, kGuardByte, kGuardBytes);
    std::memset(at, 0xFF, static_cast<size_t>(bytes));
    std::memset(at + bytes, kGuardByte, kGuardBytes);
    if (checked_) CheckedPiece(at, bytes);
  }
  OT_CHECK_EQ(pieces_[static_cast<size_t>(piece)], bytes)
      << block_.kernel << ": threads take different pieces of shared memory";
  return at;
}

void Runner::CheckGuards() const {
  const unsigned char* at = shared_;
  for (int64_t piece = 0; piece <= piece_count_ && piece_count_ > 0; ++piece) {
    for (int64_t i = 0; i < kGuardBytes; ++i) {
      OT_CHECK(at[i] == kGuardByte) << block_.kernel << ": a write outside the pieces of shared "
                                    << "memory, beside piece " << piece;
    }
    if (piece < piece_count_) at += kGuardBytes + pieces_[static_cast<size_t>(piece)];
  }
}

void Runner::Diverged(const std::string& what) const {
  OT_CHECK(false) << block_.kernel << ": threads diverge in block " << block_.number << ": "
                  << what;
  __builtin_unreachable();
}

Runner& RunnerOfThisThread() {
  thread_local Runner runner;
  return runner;
}

}  // namespace

void Run(const char* kernel, const Grid& grid, bool checked, void (*body)(const void*),
         const void* argument, int64_t argument_bytes) {
  const DeviceAccess access;
  const int64_t blocks = grid.blocks_x * grid.blocks_y * grid.blocks_z;
  const bool last_first = reversed.load() > 0;
  const auto run = [&](int64_t i) {
    RunnerOfThisThread().RunBlock(kernel, grid, last_first ? blocks - 1 - i : i, checked, body,
                                  argument);
  };
  if (checked) CheckedLaunchBegins(kernel, argument, argument_bytes);
  if (checked || blocks == 1) {
    for (int64_t i = 0; i < blocks; ++i) run(i);
  } else {
#pragma omp parallel for schedule(dynamic, 1)
    for (int64_t i = 0; i < blocks; ++i) run(i);
  }
  if (checked) CheckedLaunchEnds();
}

ReversedBlocks::ReversedBlocks() { reversed.fetch_add(1); }
ReversedBlocks::~ReversedBlocks() { reversed.fetch_sub(1); }

void Barrier() { active->Suspend(State::kAtBarrier); }

void CallWarp(const WarpCall& call) {
  active->running().call = call;
  active->Suspend(State::kInWarpCall);
}

void* TakeShared(int64_t bytes, int64_t* taken) {
  const Unwatched unwatched;
  return active->TakeShared(bytes, taken);
}

void CopyLater(void* shared, const void* from) {
  OT_CHECK_EQ((reinterpret_cast<uintptr_t>(shared) | reinterpret_cast<uintptr_t>(from)) % 16, 0U)
      << current_block->kernel << ": CopyAsync16 wants multiples of 16 bytes";
  if (from != nullptr) Touch(from, 16, Access::kRead);
  Touch(shared, 16, Access::kCopyBegins);
  const Unwatched unwatched;
  active->running().copies.push_back({shared, from});
}

void CloseGroup() {
  const Unwatched unwatched;
  Fiber& fiber = active->running();
  fiber.closed.push_back(fiber.copies.size() - fiber.in_groups);
  fiber.in_groups = fiber.copies.size();
}

void WaitForGroups(int open) {
  Fiber& fiber = active->running();
  while (fiber.closed.size() - fiber.groups_done > static_cast<size_t>(open)) {
    for (size_t left = fiber.closed[fiber.groups_done++]; left > 0; --left) {
      const Copy& copy = fiber.copies[fiber.copies_done++];
      Touch(copy.to, 16, Access::kCopyEnds);
      if (copy.from == nullptr) {
        const Unwatched unwatched;
        std::memset(copy.to, 0, 16);
      } else {
        // Once more: the source must not have changed meanwhile.
        Touch(copy.from, 16, Access::kRead);
        const Unwatched unwatched;
        std::memcpy(copy.to, copy.from, 16);
      }
    }
  }
  const Unwatched unwatched;
  // What is done makes room once it is the larger part.
  if (2 * fiber.copies_done < fiber.copies.size() || 2 * fiber.groups_done < fiber.closed.size())
    return;
  fiber.copies.erase(fiber.copies.begin(),
                     fiber.copies.begin() + static_cast<std::ptrdiff_t>(fiber.copies_done));
  fiber.closed.erase(fiber.closed.begin(),
                     fiber.closed.begin() + static_cast<std::ptrdiff_t>(fiber.groups_done));
  fiber.in_groups -= fiber.copies_done;
  fiber.copies_done = fiber.groups_done = 0;
}

void Misaligned(const void* at, uint64_t bytes) {
  const Unwatched unwatched;
  OT_CHECK(false) << current_block->kernel << ", block " << current_block->number << ", thread "
                  << current_thread->number << ": a pack of " << bytes << " bytes at " << at
                  << ", which is no multiple of its size";
  __builtin_unreachable();
}

void ReadRow(const char* call, const void* row) {
  OT_CHECK_EQ(reinterpret_cast<uintptr_t>(row) % 16, 0U)
      << current_block->kernel << ": " << call << " wants rows at multiples of 16 bytes";
  Touch(row, 16, Access::kRead);
}

void Trap(const char* why) {
  const Unwatched unwatched;
  OT_CHECK(false) << current_block->kernel << ": " << why;
  std::abort();
}

}  // namespace overtok::emulation

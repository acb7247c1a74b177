#include "core/cuda/emulation/emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/emulation/device_memory.h"

namespace overtok::emulation {

thread_local Thread* current_thread = nullptr;
thread_local Block* current_block = nullptr;

namespace {

namespace context = boost::context::detail;

constexpr int kLanes = 32;
constexpr int64_t kStackBytes = int64_t{128} << 10;  // of a fiber; only touched pages exist
constexpr int64_t kGuardBytes = 64;                  // between pieces of shared memory
constexpr unsigned char kGuardByte = 0xA5;
constexpr int64_t kMostPieces = 64;

enum class State : uint8_t { kReady, kAtBarrier, kInWarpCall, kReturned };

struct Copy {
  void* to;
  const void* from;
};

// A fiber runs thread after thread: one that never waits costs two switches and no new stack.
struct Fiber {
  context::fcontext_t resume = nullptr;
  Thread thread;
  State state = State::kReturned;
  WarpCall call;
  std::vector<std::vector<Copy>> groups;  // closed groups of copies, the oldest first
  std::vector<Copy> open;
};

// The block that runs on one OS thread, and the fibers, which live as long as that.
class Runner {
 public:
  ~Runner() {
    if (stacks_ != nullptr) munmap(stacks_, static_cast<size_t>(stack_count_ * kStackBytes));
  }

  void RunBlock(const char* kernel, const Grid& grid, int64_t number, void (*body)(const void*),
                const void* argument);

  void Suspend(State state) {
    Fiber& fiber = *running_;
    fiber.state = state;
    current_thread = nullptr;
    back_ = context::jump_fcontext(back_, nullptr).fctx;
    current_thread = &fiber.thread;
  }
  Fiber& running() { return *running_; }
  void* TakeShared(int64_t bytes, int64_t* taken);

 private:
  static void Main(context::transfer_t from);
  void Grow(int threads);
  void Resume(Fiber& fiber);
  bool RunWarp(size_t first, size_t end);
  bool CombineWarp(size_t first, size_t end);
  void PassBarrier(size_t count);
  void CheckGuards() const;
  [[noreturn]] void Diverged(const std::string& what) const;
  std::string Place(const Fiber& fiber) const;

  std::vector<std::unique_ptr<Fiber>> fibers_;
  char* stacks_ = nullptr;
  int64_t stack_count_ = 0;
  Fiber* running_ = nullptr;
  context::fcontext_t back_ = nullptr;
  void (*body_)(const void*) = nullptr;
  const void* argument_ = nullptr;
  Block block_;
  size_t threads_ = 0;
  int64_t shared_bytes_ = 0;
  std::vector<unsigned char> shared_;
  std::array<int64_t, kMostPieces> pieces_{};  // bytes of each piece taken in this block
  int64_t piece_count_ = 0;
};

thread_local Runner* active = nullptr;

void Runner::Main(context::transfer_t from) {
  auto* runner = static_cast<Runner*>(from.data);
  runner->back_ = from.fctx;
  for (;;) {
    runner->body_(runner->argument_);
    Fiber& fiber = *runner->running_;
    OT_CHECK(fiber.groups.empty() && fiber.open.empty())
        << runner->block_.kernel << ": a thread returned with copies under way";
    runner->Suspend(State::kReturned);
  }
}

void Runner::Grow(int threads) {
  if (threads <= stack_count_) return;
  OT_CHECK_EQ(stack_count_, 0) << "stacks are made once";
  stack_count_ = 1024;
  void* stacks = mmap(nullptr, static_cast<size_t>(stack_count_ * kStackBytes),
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  OT_CHECK(stacks != MAP_FAILED) << "no address space for the emulator's stacks";
  stacks_ = static_cast<char*>(stacks);
  for (int64_t i = 0; i < stack_count_; ++i) {
    // The lowest page of every stack is not there: an overflow stops at once.
    mprotect(stacks_ + i * kStackBytes, 4096, PROT_NONE);
    fibers_.push_back(std::make_unique<Fiber>());
    fibers_.back()->resume = context::make_fcontext(stacks_ + (i + 1) * kStackBytes,
                                                    static_cast<size_t>(kStackBytes), Main);
  }
}

void Runner::Resume(Fiber& fiber) {
  fiber.state = State::kReady;
  running_ = &fiber;
  current_thread = &fiber.thread;
  const context::transfer_t back = context::jump_fcontext(fiber.resume, this);
  fiber.resume = back.fctx;
  current_thread = nullptr;
}

// Threads [first, end) of one warp until each waits at the block's barrier or has returned. Whether
// any of them moved.
bool Runner::RunWarp(size_t first, size_t end) {
  bool moved = false;
  do {
    for (size_t i = first; i < end; ++i) {
      if (fibers_[i]->state != State::kReady) continue;
      Resume(*fibers_[i]);
      moved = true;
    }
  } while (CombineWarp(first, end));
  return moved;
}

// True when a collective call of the warp was carried out, so that its lanes can go on.
bool Runner::CombineWarp(size_t first, size_t end) {
  size_t waiting = 0;
  const Fiber* one = nullptr;
  for (size_t i = first; i < end; ++i) {
    if (fibers_[i]->state != State::kInWarpCall) continue;
    ++waiting;
    one = fibers_[i].get();
  }
  if (waiting == 0) return false;
  for (size_t i = first; i < end; ++i) {
    const Fiber& fiber = *fibers_[i];
    if (fiber.state != State::kInWarpCall || fiber.call.combine != one->call.combine) {
      Diverged(absl::StrCat(Place(*one), " is in ", one->call.name, ", ", Place(fiber),
                            " of the same warp is not"));
    }
  }
  if (waiting < kLanes) {
    Diverged(absl::StrCat(one->call.name, " in a warp of ", waiting,
                          " threads: blocks have whole warps where threads call it"));
  }
  std::array<void*, kLanes> operands{};
  for (size_t i = first; i < end; ++i) operands[i - first] = fibers_[i]->call.operands;
  one->call.combine(operands.data());
  for (size_t i = first; i < end; ++i) {
    fibers_[i]->state = State::kReady;
    ++fibers_[i]->thread.warp_phase;
  }
  return true;
}

void Runner::PassBarrier(size_t count) {
  size_t waiting = 0;
  for (size_t i = 0; i < count; ++i) waiting += fibers_[i]->state == State::kAtBarrier ? 1 : 0;
  if (waiting == 0) return;
  for (size_t i = 0; i < count; ++i) {
    Fiber& fiber = *fibers_[i];
    if (fiber.state != State::kAtBarrier) {
      Diverged(
          absl::StrCat(waiting, " threads wait at SyncThreads, ", Place(fiber), " has returned"));
    }
    fiber.state = State::kReady;
    ++fiber.thread.block_phase;
  }
}

void Runner::RunBlock(const char* kernel, const Grid& grid, int64_t number,
                      void (*body)(const void*), const void* argument) {
  Grow(grid.threads);
  body_ = body;
  argument_ = argument;
  threads_ = static_cast<size_t>(grid.threads);
  block_.kernel = kernel;
  block_.number = number;
  block_.index = {static_cast<unsigned>(number % grid.blocks_x),
                  static_cast<unsigned>(number / grid.blocks_x % grid.blocks_y),
                  static_cast<unsigned>(number / grid.blocks_x / grid.blocks_y)};
  block_.size = {static_cast<unsigned>(grid.threads), 1, 1};
  block_.grid = {static_cast<unsigned>(grid.blocks_x), static_cast<unsigned>(grid.blocks_y),
                 static_cast<unsigned>(grid.blocks_z)};
  shared_bytes_ = grid.shared_bytes;
  shared_.assign(static_cast<size_t>(grid.shared_bytes + (kMostPieces + 1) * kGuardBytes + 16),
                 kGuardByte);
  piece_count_ = 0;
  Runner* const outer = active;
  Block* const outer_block = current_block;
  active = this;
  current_block = &block_;
  for (size_t i = 0; i < threads_; ++i) {
    Fiber& fiber = *fibers_[i];
    OT_CHECK(fiber.state == State::kReturned);
    fiber.state = State::kReady;
    fiber.thread = {};
    fiber.thread.index.x = static_cast<unsigned>(i);
    fiber.thread.number = static_cast<uint32_t>(i);
  }
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t first = 0; first < threads_; first += kLanes)
      moved = RunWarp(first, std::min(threads_, first + kLanes)) || moved;
    PassBarrier(threads_);
  }
  CheckGuards();
  active = outer;
  current_block = outer_block;
}

void* Runner::TakeShared(int64_t bytes, int64_t* taken) {
  // `taken` counts pieces of the calling thread; all threads take the same ones.
  const int64_t piece = (*taken)++;
  OT_CHECK_LT(piece, kMostPieces) << block_.kernel;
  if (piece == piece_count_) {
    pieces_[static_cast<size_t>(piece_count_++)] = bytes;
  }
  OT_CHECK_EQ(pieces_[static_cast<size_t>(piece)], bytes)
      << block_.kernel << ": threads take different pieces of shared memory";
  int64_t before = 0;
  for (int64_t i = 0; i < piece; ++i) before += pieces_[static_cast<size_t>(i)];
  OT_CHECK_LE(before + bytes, shared_bytes_)
      << block_.kernel << " takes more shared memory than it was launched with";
  const auto base = reinterpret_cast<uintptr_t>(shared_.data());
  const uintptr_t aligned = (base + 15) / 16 * 16;
  return reinterpret_cast<void*>(aligned +
                                 static_cast<uintptr_t>(before + (piece + 1) * kGuardBytes));
}

void Runner::CheckGuards() const {
  const auto base = reinterpret_cast<uintptr_t>(shared_.data());
  const unsigned char* at = shared_.data() + ((base + 15) / 16 * 16 - base);
  for (int64_t piece = 0; piece <= piece_count_; ++piece) {
    for (int64_t i = 0; i < kGuardBytes; ++i) {
      OT_CHECK(at[i] == kGuardByte) << block_.kernel << ": a write outside the pieces of shared "
                                    << "memory, beside piece " << piece;
    }
    if (piece < piece_count_) at += kGuardBytes + pieces_[static_cast<size_t>(piece)];
  }
}

std::string Runner::Place(const Fiber& fiber) const {
  return absl::StrCat("thread ", fiber.thread.number);
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
         const void* argument) {
  const DeviceAccess access;
  const int64_t blocks = grid.blocks_x * grid.blocks_y * grid.blocks_z;
  if (checked || blocks == 1) {
    for (int64_t b = 0; b < blocks; ++b)
      RunnerOfThisThread().RunBlock(kernel, grid, b, body, argument);
    return;
  }
#pragma omp parallel for schedule(dynamic, 1)
  for (int64_t b = 0; b < blocks; ++b)
    RunnerOfThisThread().RunBlock(kernel, grid, b, body, argument);
}

void Barrier() { active->Suspend(State::kAtBarrier); }

void CallWarp(const WarpCall& call) {
  active->running().call = call;
  active->Suspend(State::kInWarpCall);
}

void* TakeShared(int64_t bytes, int64_t* taken) { return active->TakeShared(bytes, taken); }

void CopyLater(void* shared, const void* from) { active->running().open.push_back({shared, from}); }

void CloseGroup() {
  Fiber& fiber = active->running();
  fiber.groups.push_back(std::move(fiber.open));
  fiber.open.clear();
}

void WaitForGroups(int open) {
  Fiber& fiber = active->running();
  while (fiber.groups.size() > static_cast<size_t>(open)) {
    for (const Copy& copy : fiber.groups.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, 16);
      } else {
        std::memcpy(copy.to, copy.from, 16);
      }
    }
    fiber.groups.erase(fiber.groups.begin());
  }
}

}  // namespace overtok::emulation

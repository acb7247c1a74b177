#include "core/cuda/emulation/checker.h"

#include <link.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/emulation/emulator.h"
#include "core/cuda/emulation/known_memory.h"

namespace overtok::emulation {

constinit thread_local Watch watch;

namespace {

// A word of a cell: time << 16 | bits | thread.
constexpr uint64_t kThreadBits = 0x3ff;
constexpr uint64_t kWarpBit = 1U << 10;        // other threads of the same warp, too
constexpr uint64_t kManyBit = 1U << 11;        // threads of other warps, too
constexpr uint64_t kOtherBlockBit = 1U << 12;  // earlier blocks of the launch, too
constexpr uint64_t kAtomicBit = 1U << 13;      // all of them atomic
constexpr uint64_t kPendingBit = 1U << 15;     // an asynchronous copy is under way
constexpr int kTimeShift = 16;
constexpr uint32_t kLanes = 32;

struct Range {
  uintptr_t begin = 0, end = 0;
  bool Holds(uintptr_t address, int64_t bytes) const {
    return address >= begin && address + static_cast<uintptr_t>(bytes) <= end;
  }
};

// What no program can write: its constants.
std::vector<Range> Constants() {
  std::vector<Range> ranges;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          const bool constant = (header.p_type == PT_LOAD && (header.p_flags & PF_W) == 0) ||
                                header.p_type == PT_GNU_RELRO;
          const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
          if (constant)
            static_cast<std::vector<Range>*>(to)->push_back({begin, begin + header.p_memsz});
        }
        return 0;
      },
      &ranges);
  return ranges;
}

class Checker {
 public:
  static Checker& Instance() {
    static auto* const checker = new Checker;
    return *checker;
  }

  void BeginLaunch(const char* kernel, Range arguments) {
    mutex_.lock();
    kernel_ = kernel;
    arguments_ = arguments;
    launch_ = ++now_;
    block_starts_.clear();
  }
  void EndLaunch() { mutex_.unlock(); }

  void BeginBlock(int64_t number, Range shared, Range stacks) {
    block_ = barrier_ = ++now_;
    block_starts_.emplace_back(block_, number);
    shared_ = shared;
    stacks_ = stacks;
    pieces_.clear();
    const size_t bytes = shared.end - shared.begin;
    if (shared_cells_.size() < bytes) shared_cells_.resize(bytes);
    warps_.fill(0);
  }
  void AddPiece(Range piece) { pieces_.push_back(piece); }
  void Barrier() { barrier_ = ++now_; }
  void WarpBarrier(uint32_t warp) { warps_[warp] = ++now_; }

  void Check(uintptr_t at, int64_t bytes, Access access);
  [[noreturn]] void Fail(const std::string& what, uintptr_t at, int64_t bytes, Access access);

 private:
  struct Place {
    Cell* cells = nullptr;
    const KnownBlock* block = nullptr;  // null: shared memory
    uint64_t since = 0;                 // accesses before that time do not matter
  };
  Place PlaceOf(uintptr_t at, int64_t bytes, Access access);
  const KnownBlock* Find(uintptr_t at);
  bool IsConstant(uintptr_t at, int64_t bytes) const;
  bool Ordered(uint64_t word, uint64_t since) const;
  uint64_t Merge(uint64_t word, uint64_t since) const;
  [[noreturn]] void FailRace(const Place& place, uint64_t word, bool write, uintptr_t at,
                             int64_t bytes, Access access);
  std::string Where(const KnownBlock* block, uintptr_t at) const;

  std::mutex mutex_;  // held through a launch
  const char* kernel_ = "";
  Range arguments_, shared_, stacks_;
  uint64_t now_ = 1, launch_ = 0, block_ = 0, barrier_ = 0;
  std::array<uint64_t, 1024 / kLanes> warps_{};             // time of each warp's last barrier
  std::vector<std::pair<uint64_t, int64_t>> block_starts_;  // of this launch: time, number
  std::vector<Range> pieces_;
  std::vector<Cell> shared_cells_;
  std::vector<Range> constants_ = Constants();
  // Blocks found lately; a kernel has few operands.
  std::array<const KnownBlock*, 8> recent_{};
  size_t next_recent_ = 0;
  uint64_t generation_ = 0;
  uint64_t own_ = 0, own_thread_ = 0;  // the running thread's word and number
};

const KnownBlock* Checker::Find(uintptr_t at) {
  if (generation_ != MemoryGeneration()) {
    generation_ = MemoryGeneration();
    recent_.fill(nullptr);
  }
  for (const KnownBlock* block : recent_)
    if (block != nullptr && block->Holds(at)) return block;
  const KnownBlock* block = FindMemory(at);
  if (block != nullptr) recent_[next_recent_++ % recent_.size()] = block;
  return block;
}

bool Checker::IsConstant(uintptr_t at, int64_t bytes) const {
  return std::any_of(constants_.begin(), constants_.end(),
                     [&](const Range& range) { return range.Holds(at, bytes); });
}

// Where the accesses to these bytes are kept; no cells: nothing is to be kept of them.
Checker::Place Checker::PlaceOf(uintptr_t at, int64_t bytes, Access access) {
  if (at >= shared_.begin && at < shared_.end) {
    for (const Range& piece : pieces_) {
      if (piece.Holds(at, bytes))
        return {.cells = shared_cells_.data() + (at - shared_.begin), .since = block_};
    }
    Fail("outside the pieces of shared memory that the block has taken", at, bytes, access);
  }
  if (access == Access::kCopyBegins) Fail("CopyAsync16 copies to shared memory", at, bytes, access);
  if (const KnownBlock* block = Find(at)) {
    const auto offset = static_cast<int64_t>(at - block->begin);
    if (offset + bytes > block->bytes) {
      Fail(absl::StrCat("runs over the end of ", block->name, ", of ", block->bytes, " bytes"), at,
           bytes, access);
    }
    return {.cells = block->cells + offset, .block = block, .since = launch_};
  }
  if (access == Access::kRead && (arguments_.Holds(at, bytes) || IsConstant(at, bytes))) return {};
  if (stacks_.Holds(at, bytes)) Fail("in local memory of another thread", at, bytes, access);
  Fail(absl::StrCat("out of bounds: ", NearestMemory(at)), at, bytes, access);
}

// Whether all accesses that the word stands for come before the present one.
bool Checker::Ordered(uint64_t word, uint64_t since) const {
  const uint64_t time = word >> kTimeShift;
  if (time < since) return true;
  if ((word & kOtherBlockBit) != 0 || time < block_) return false;
  if (time < barrier_) return true;
  const uint64_t thread = word & kThreadBits;
  const bool one = (word & (kWarpBit | kManyBit)) == 0;
  if (one && thread == own_thread_) return true;
  return (word & kManyBit) == 0 && thread / kLanes == own_thread_ / kLanes &&
         time < warps_[thread / kLanes];
}

// The word with the present access added; those that are ordered before it are left out, because
// whatever is ordered after it is ordered after them.
uint64_t Checker::Merge(uint64_t word, uint64_t since) const {
  const uint64_t time = word >> kTimeShift;
  if (time < since) return own_;
  if (time < block_) return own_ | kOtherBlockBit;
  const uint64_t other = word & kOtherBlockBit;
  if (time < barrier_) return own_ | other;
  const uint64_t thread = word & kThreadBits;
  const bool one = (word & (kWarpBit | kManyBit)) == 0;
  if (one && thread == own_thread_) return own_ | other;
  if ((word & kManyBit) == 0 && thread / kLanes == own_thread_ / kLanes)
    return own_ | other | (time < warps_[thread / kLanes] ? 0 : kWarpBit);
  return own_ | other | kManyBit;
}

void Checker::Check(uintptr_t at, int64_t bytes, Access access) {
  const Place place = PlaceOf(at, bytes, access);
  if (place.cells == nullptr) return;
  own_thread_ = current_thread->number;
  own_ = now_ << kTimeShift | own_thread_;
  const uint64_t since = place.since;
  for (int64_t i = 0; i < bytes; ++i) {
    Cell& cell = place.cells[i];
    const uintptr_t byte = at + static_cast<uintptr_t>(i);
    // Shared memory is a new one in every block; what is left in the cells was another's.
    const bool unwritten = place.block == nullptr ? cell.write >> kTimeShift < block_
                                                  : (cell.write & kUnwrittenBit) != 0;
    if (!unwritten && (cell.write & kPendingBit) != 0) {
      if (access != Access::kCopyEnds) {
        Fail("an asynchronous copy there has not been waited for (CopyAsyncWait)", byte, bytes,
             access);
      }
      cell.write &= ~kPendingBit;
    }
    switch (access) {
      case Access::kRead:
        if (unwritten) Fail("nobody has written it", byte, bytes, access);
        if (!Ordered(cell.write, since)) FailRace(place, cell.write, true, byte, bytes, access);
        if (cell.read != own_) cell.read = Merge(cell.read, since);
        break;
      case Access::kWrite:
      case Access::kCopyBegins:
      case Access::kCopyEnds:
        if (!Ordered(cell.write, since)) FailRace(place, cell.write, true, byte, bytes, access);
        if (!Ordered(cell.read, since)) FailRace(place, cell.read, false, byte, bytes, access);
        cell.write = own_ | (access == Access::kCopyBegins ? kPendingBit : 0);
        break;
      case Access::kAtomic: {
        if (unwritten) Fail("nobody has written it", byte, bytes, access);
        const bool after = Ordered(cell.write, since);
        if (!after && (cell.write & kAtomicBit) == 0)
          FailRace(place, cell.write, true, byte, bytes, access);
        if (!Ordered(cell.read, since)) FailRace(place, cell.read, false, byte, bytes, access);
        // A plain write of the same thread that nothing orders before others' stays one.
        const bool fresh = cell.write >> kTimeShift < std::max(since, barrier_);
        cell.write = Merge(cell.write, since) | (fresh ? kAtomicBit : cell.write & kAtomicBit);
        break;
      }
    }
  }
}

std::string Checker::Where(const KnownBlock* block, uintptr_t at) const {
  if (block == nullptr) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (pieces_[i].Holds(at, 1))
        return absl::StrCat("shared memory, piece ", i, " byte ", at - pieces_[i].begin);
    }
    // Beside the piece that begins last before it.
    for (size_t i = pieces_.size(); i-- > 0;) {
      if (at >= pieces_[i].end) {
        return absl::StrCat("shared memory, ", at - pieces_[i].end, " bytes past the end of piece ",
                            i);
      }
    }
    return pieces_.empty()
               ? "shared memory, of which nothing was taken"
               : absl::StrCat("shared memory, ", pieces_[0].begin - at, " bytes before piece 0");
  }
  const uintptr_t offset = at - block->begin;
  std::string where = block->name;
  if (block->element_bytes > 0) {
    absl::StrAppend(&where, " element ", offset / static_cast<uintptr_t>(block->element_bytes),
                    ",");
  }
  absl::StrAppend(&where, " byte ", offset, " of ", block->bytes);
  return where;
}

const char* NameOf(Access access) {
  switch (access) {
    case Access::kRead:
      return "reads";
    case Access::kWrite:
      return "writes";
    case Access::kAtomic:
      return "atomically changes";
    case Access::kCopyBegins:
      return "starts to copy";
    case Access::kCopyEnds:
      return "has copied";
  }
  return "";
}

void Checker::Fail(const std::string& what, uintptr_t at, int64_t bytes, Access access) {
  const bool shared = at >= shared_.begin && at < shared_.end;
  const KnownBlock* block = shared ? nullptr : Find(at);
  const std::string where =
      shared || block != nullptr ? Where(block, at) : absl::StrCat("address 0x", absl::Hex(at));
  OT_CHECK(false) << kernel_ << ", block " << block_starts_.back().second << ", thread "
                  << current_thread->number << " " << NameOf(access) << " " << bytes << " bytes at "
                  << where << ": " << what;
  __builtin_unreachable();
}

void Checker::FailRace(const Place& place, uint64_t word, bool write, uintptr_t at, int64_t bytes,
                       Access access) {
  const uint64_t time = word >> kTimeShift;
  const bool atomic = write && (word & kAtomicBit) != 0;
  std::string what = "race: ";
  if (time < block_ || (word & kOtherBlockBit) != 0) {
    const auto after = std::upper_bound(block_starts_.begin(), block_starts_.end(),
                                        std::pair<uint64_t, int64_t>(time, INT64_MAX));
    if (time < block_) {
      absl::StrAppend(&what, "thread ", word & kThreadBits, " of block ", std::prev(after)->second);
    } else {
      absl::StrAppend(&what, "another block");
    }
    absl::StrAppend(&what, " of the launch ");
  } else {
    absl::StrAppend(&what, "thread ", word & kThreadBits,
                    (word & (kManyBit | kWarpBit)) != 0 ? " (and others)" : "", " of the block ");
  }
  absl::StrAppend(&what, atomic ? "changed it atomically" : (write ? "wrote it" : "read it"),
                  place.block != nullptr && time < block_ ? "" : ", and no barrier stands between");
  Fail(what, at, bytes, access);
}

Range RangeOf(const void* begin, int64_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  return {address, address + static_cast<uintptr_t>(bytes)};
}

}  // namespace

void CheckAccess(uintptr_t at, int64_t bytes, Access access) {
  const Unwatched unwatched;
  Checker::Instance().Check(at, bytes, access);
}

void FailAlignment(uintptr_t at, int64_t bytes, Access access) {
  const Unwatched unwatched;
  Checker::Instance().Fail("the address is no multiple of the access's size", at, bytes, access);
}

void CheckedLaunchBegins(const char* kernel, const void* arguments, int64_t argument_bytes) {
  Checker::Instance().BeginLaunch(kernel, RangeOf(arguments, argument_bytes));
}
void CheckedLaunchEnds() { Checker::Instance().EndLaunch(); }
void CheckedBlockBegins(int64_t number, const void* shared, int64_t shared_bytes,
                        const void* stacks, int64_t stack_bytes) {
  Checker::Instance().BeginBlock(number, RangeOf(shared, shared_bytes),
                                 RangeOf(stacks, stack_bytes));
}
void CheckedPiece(const void* piece, int64_t bytes) {
  Checker::Instance().AddPiece(RangeOf(piece, bytes));
}
void CheckedBarrier() { Checker::Instance().Barrier(); }
void CheckedWarpBarrier(uint32_t warp) { Checker::Instance().WarpBarrier(warp); }

}  // namespace overtok::emulation

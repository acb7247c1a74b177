#include "core/cuda/emulation/known_memory.h"

#include <sys/mman.h>

#include <atomic>
#include <map>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "core/check.h"

namespace overtok::emulation {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, KnownBlock> blocks;  // by address
  std::atomic<uint64_t> generation{1};

  // Null where no block holds the address.
  KnownBlock* Find(uintptr_t address) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return nullptr;
    KnownBlock& block = std::prev(after)->second;
    return block.Holds(address) ? &block : nullptr;
  }
};

Registry& Known() {
  // Outlives every static object that frees device memory as the program ends.
  static auto* const registry = new Registry;
  return *registry;
}

size_t CellBytes(const KnownBlock& block) {
  return static_cast<size_t>(block.bytes) * sizeof(Cell);
}

// Address space; only the pages of touched cells exist.
void MakeCells(KnownBlock& block) {
  if (block.cells != nullptr) return;
  void* cells = mmap(nullptr, CellBytes(block), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  OT_CHECK(cells != MAP_FAILED) << "no address space to check the accesses to " << block.name;
  block.cells = static_cast<Cell*>(cells);
}

// The cells of bytes [begin, begin + bytes); null where no block holds them.
Cell* CellsOf(const void* begin, int64_t bytes, bool make) {
  const auto address = reinterpret_cast<uintptr_t>(begin);
  KnownBlock* block = bytes > 0 ? Known().Find(address) : nullptr;
  if (block == nullptr) return nullptr;
  OT_CHECK_LE(static_cast<int64_t>(address - block->begin) + bytes, block->bytes) << block->name;
  if (make) MakeCells(*block);
  return block->cells == nullptr ? nullptr : block->cells + (address - block->begin);
}

}  // namespace

void AddMemory(const void* begin, int64_t bytes, absl::string_view name, int64_t element_bytes) {
  if (bytes == 0) return;
  Registry& known = Known();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const bool added = known.blocks
                         .emplace(address, KnownBlock{.begin = address,
                                                      .bytes = bytes,
                                                      .name = std::string(name),
                                                      .element_bytes = element_bytes})
                         .second;
  OT_CHECK(added) << std::string(name) << " begins where another block begins";
}

void RemoveMemory(const void* begin) {
  Registry& known = Known();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto block = known.blocks.find(reinterpret_cast<uintptr_t>(begin));
  if (block == known.blocks.end()) return;
  if (block->second.cells != nullptr) munmap(block->second.cells, CellBytes(block->second));
  known.blocks.erase(block);
  known.generation.fetch_add(1);
}

void RenameMemory(const void* begin, absl::string_view name) {
  Registry& known = Known();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto block = known.blocks.find(reinterpret_cast<uintptr_t>(begin));
  if (block != known.blocks.end()) block->second.name = std::string(name);
}

void MarkUnwritten(const void* begin, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(Known().mutex);
  Cell* cells = CellsOf(begin, bytes, true);
  if (cells == nullptr) return;
  for (int64_t i = 0; i < bytes; ++i) cells[i] = {.write = kUnwrittenBit, .read = 0};
}

void MarkWritten(const void* begin, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(Known().mutex);
  Cell* cells = CellsOf(begin, bytes, false);
  if (cells == nullptr) return;
  for (int64_t i = 0; i < bytes; ++i) cells[i] = {};
}

int64_t FirstUnwritten(const void* begin, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(Known().mutex);
  const Cell* cells = CellsOf(begin, bytes, false);
  if (cells == nullptr) return -1;
  for (int64_t i = 0; i < bytes; ++i)
    if ((cells[i].write & kUnwrittenBit) != 0) return i;
  return -1;
}

const KnownBlock* FindMemory(uintptr_t address) {
  const std::lock_guard<std::mutex> lock(Known().mutex);
  KnownBlock* block = Known().Find(address);
  if (block != nullptr) MakeCells(*block);
  return block;
}

uint64_t MemoryGeneration() { return Known().generation.load(std::memory_order_relaxed); }

std::string NearestMemory(uintptr_t address) {
  Registry& known = Known();
  const std::lock_guard<std::mutex> lock(known.mutex);
  const auto after = known.blocks.upper_bound(address);
  const KnownBlock* below = after == known.blocks.begin() ? nullptr : &std::prev(after)->second;
  const KnownBlock* above = after == known.blocks.end() ? nullptr : &after->second;
  const uintptr_t past = below == nullptr
                             ? UINTPTR_MAX
                             : address - below->begin - static_cast<uintptr_t>(below->bytes);
  const uintptr_t before = above == nullptr ? UINTPTR_MAX : above->begin - address;
  constexpr uintptr_t kNear = 1 << 20;
  if (past <= before && past < kNear)
    return absl::StrCat(past, " bytes past the end of ", below->name);
  if (before < kNear) return absl::StrCat(before, " bytes before ", above->name);
  return "in no block that kernels may touch";
}

}  // namespace overtok::emulation

// Memory that kernels may touch, block by block: the emulated device's, and what tests register of
// their own. Every block has a name for messages and, once the checker (core/cuda/emulation/
// checker.h) has seen an access to it or somebody has marked it, a cell for each of its bytes.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace overtok::emulation {

// What is remembered of a byte: who wrote it and who read it last, as the checker packs it.
struct Cell {
  uint64_t write = 0, read = 0;
};
// In `write`: nobody has written the byte since it was marked.
inline constexpr uint64_t kUnwrittenBit = 1U << 14;

struct KnownBlock {
  uintptr_t begin = 0;
  int64_t bytes = 0;
  std::string name;
  int64_t element_bytes = 0;  // 0: not known
  Cell* cells = nullptr;      // `bytes` of them once needed

  bool Holds(uintptr_t address) const {
    return address - begin < static_cast<uintptr_t>(bytes);  // wraps below begin
  }
};

void AddMemory(const void* begin, int64_t bytes, absl::string_view name, int64_t element_bytes = 0);
// Nothing where no block begins there.
void RemoveMemory(const void* begin);
void RenameMemory(const void* begin, absl::string_view name);

// Marks bytes of one block; nothing where no block holds them. Blocks begin as written.
void MarkUnwritten(const void* begin, int64_t bytes);
void MarkWritten(const void* begin, int64_t bytes);
// Index of the first byte that is still marked; -1: none (or no block).
int64_t FirstUnwritten(const void* begin, int64_t bytes);

// The block that holds the address, with cells; null: none. Valid until it is removed.
const KnownBlock* FindMemory(uintptr_t address);
// Changes whenever a block is removed: what was found before may be gone.
uint64_t MemoryGeneration();
// "16 bytes past the end of y", for an address that no block holds.
std::string NearestMemory(uintptr_t address);

}  // namespace overtok::emulation

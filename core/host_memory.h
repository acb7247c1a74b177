// Pages of host memory, straight from the kernel.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace overtok {

// Zero-filled; large blocks ask for huge pages (fewer TLB misses in products). Null for 0 bytes.
// Running out of address space aborts, naming what it was for.
void* AllocatePages(int64_t bytes, absl::string_view name);
void FreePages(void* data, int64_t bytes);

}  // namespace overtok

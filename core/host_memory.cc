#include "core/host_memory.h"

#include <sys/mman.h>

#include <string>

#include "core/check.h"

namespace overtok {

void* AllocatePages(int64_t bytes, absl::string_view name) {
  if (bytes == 0) return nullptr;
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OT_CHECK(data != MAP_FAILED) << "out of memory: " << std::string(name) << " needs " << bytes
                               << " bytes";
  constexpr int64_t kHugePage = int64_t{1} << 21;
  if (bytes >= kHugePage) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return data;
}

void FreePages(void* data, int64_t bytes) {
  if (data != nullptr) munmap(data, static_cast<size_t>(bytes));
}

}  // namespace overtok

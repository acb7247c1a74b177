#include "core/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <numeric>

#include "core/check.h"

namespace overtok {

const char* NameOf(Purpose purpose) {
  switch (purpose) {
    case Purpose::kParameters:
      return "parameters";
    case Purpose::kComputeCopies:
      return "bf16 copies";
    case Purpose::kGradients:
      return "gradients";
    case Purpose::kOptimizer:
      return "optimizer state";
    case Purpose::kActivations:
      return "activations";
    case Purpose::kHead:
      return "head tiles";
    case Purpose::kScratch:
      return "scratch";
    case Purpose::kBatches:
      return "batches";
    case Purpose::kSnapshot:
      return "checkpoint snapshot";
  }
  return "unknown";
}

Memory::~Memory() {
  for (const Block& block : blocks_) munmap(block.data, static_cast<size_t>(block.bytes));
}

void* Memory::Allocate(int64_t bytes, absl::string_view name) {
  if (bytes == 0 || dry()) return nullptr;
  // Whole pages straight from the kernel: zero-filled, and large blocks ask for huge pages (fewer
  // TLB misses in products).
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  OT_CHECK(data != MAP_FAILED) << "out of memory: " << std::string(name) << " needs " << bytes
                               << " bytes";
  constexpr int64_t kHugePage = int64_t{1} << 21;
  if (bytes >= kHugePage) madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  blocks_.push_back({data, bytes});
  return data;
}

Tensor Memory::Take(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  OT_CHECK(!committed_) << "memory is taken before the first step: " << std::string(name);
  const int64_t bytes = shape.elements() * SizeOf(dtype);
  bytes_[static_cast<size_t>(purpose)] += bytes;
  return Tensor(Allocate(bytes, name), dtype, shape);
}

void Memory::NeedScratch(int64_t bytes) {
  OT_CHECK(!committed_);
  scratch_ = std::max(scratch_, bytes);
}

void Memory::Commit(Context* context) {
  OT_CHECK(!committed_);
  committed_ = true;
  bytes_[static_cast<size_t>(Purpose::kScratch)] += scratch_;
  if (!dry()) context->SetScratch(Allocate(scratch_, "scratch"), scratch_);
}

int64_t Memory::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0}); }

}  // namespace overtok

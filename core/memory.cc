#include "core/memory.h"

#include <algorithm>
#include <numeric>

#include "core/check.h"
#include "core/host_memory.h"

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
  for (const Block& block : blocks_) {
    if (block.device != nullptr) {
      block.device->Free(block.data, block.bytes);
    } else {
      FreePages(block.data, block.bytes);
    }
  }
}

void* Memory::Allocate(Device* device, int64_t bytes, absl::string_view name) {
  if (bytes == 0 || dry()) return nullptr;
  void* data = device != nullptr ? device->Allocate(bytes, name) : AllocatePages(bytes, name);
  blocks_.push_back({device, data, bytes});
  return data;
}

Tensor Memory::Take(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  OT_CHECK(!committed_) << "memory is taken before the first step: " << std::string(name);
  const int64_t bytes = shape.elements() * SizeOf(dtype);
  bytes_[static_cast<size_t>(purpose)] += bytes;
  return Tensor(Allocate(device_, bytes, name), dtype, shape);
}

Tensor Memory::TakeHost(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  if (device_ == nullptr) return Take(purpose, name, dtype, shape);
  OT_CHECK(!committed_) << "memory is taken before the first step: " << std::string(name);
  const int64_t bytes = shape.elements() * SizeOf(dtype);
  host_bytes_ += bytes;
  return Tensor(Allocate(nullptr, bytes, name), dtype, shape);
}

Tensor Memory::TakeInput(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  const Tensor host = TakeHost(purpose, name, dtype, shape);
  if (device_ == nullptr) return host;
  const Tensor twin = Take(purpose, name, dtype, shape);
  if (host.raw() != nullptr) inputs_.push_back({twin.raw(), host.raw(), host.bytes()});
  return host;
}

void Memory::NeedScratch(int64_t bytes) {
  OT_CHECK(!committed_);
  scratch_ = std::max(scratch_, bytes);
}

void Memory::Commit(Context* context) {
  OT_CHECK(!committed_);
  committed_ = true;
  bytes_[static_cast<size_t>(Purpose::kScratch)] += scratch_;
  if (dry()) return;
  context->SetScratch(Allocate(device_, scratch_, "scratch"), scratch_);
  context->SetInputs(inputs_);
}

int64_t Memory::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0}); }

}  // namespace overtok

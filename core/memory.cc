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
    switch (block.place) {
      case Place::kDevice:
        device_->Free(block.data, block.bytes);
        break;
      case Place::kDeviceOnHost:
        device_->FreeOnHost(block.data, block.bytes);
        break;
      case Place::kPages:
        FreePages(block.data, block.bytes);
        break;
    }
  }
}

void* Memory::Allocate(Place place, int64_t bytes, absl::string_view name) {
  OT_CHECK(!committed_) << "memory is taken before the first step: " << std::string(name);
  if (bytes == 0 || dry()) return nullptr;
  void* data = place == Place::kPages    ? AllocatePages(bytes, name)
               : place == Place::kDevice ? device_->Allocate(bytes, name)
                                         : device_->AllocateOnHost(bytes, name);
  blocks_.push_back({place, data, bytes});
  return data;
}

Tensor Memory::Take(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  const int64_t bytes = shape.elements() * SizeOf(dtype);
  bytes_[static_cast<size_t>(purpose)] += bytes;
  return Tensor(Allocate(device_ != nullptr ? Place::kDevice : Place::kPages, bytes, name), dtype,
                shape);
}

Tensor Memory::TakeHost(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  if (device_ == nullptr) return Take(purpose, name, dtype, shape);
  const int64_t bytes = shape.elements() * SizeOf(dtype);
  host_bytes_ += bytes;
  return Tensor(Allocate(Place::kPages, bytes, name), dtype, shape);
}

Tensor Memory::TakeOnHost(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  if (device_ == nullptr) return Take(purpose, name, dtype, shape);
  const int64_t bytes = shape.elements() * SizeOf(dtype);
  host_bytes_ += bytes;
  return Tensor(Allocate(Place::kDeviceOnHost, bytes, name), dtype, shape);
}

Tensor Memory::TakeInput(Purpose purpose, absl::string_view name, DType dtype, Shape shape) {
  const Tensor host = TakeHost(purpose, name, dtype, shape);
  if (device_ == nullptr) return host;
  const Tensor twin = Take(purpose, name, dtype, shape);
  if (host.raw() != nullptr) {
    inputs_[static_cast<size_t>(group_)].push_back({twin.raw(), host.raw(), host.bytes()});
  }
  return host;
}

void Memory::NeedScratch(int64_t bytes, StreamName stream) {
  OT_CHECK(!committed_);
  // The CPU does one thing at a time: one block serves both.
  int64_t& most = scratch_[device_ != nullptr ? static_cast<size_t>(stream) : 0];
  most = std::max(most, bytes);
}

void Memory::Commit(Context* context) {
  OT_CHECK(!committed_);
  void* data = nullptr;
  for (size_t i = 0; i < kStreams; ++i) {
    const bool own = i == 0 || device_ != nullptr;
    const int64_t bytes = scratch_[own ? i : 0];
    if (own) {
      bytes_[static_cast<size_t>(Purpose::kScratch)] += bytes;
      data = Allocate(device_ != nullptr ? Place::kDevice : Place::kPages, bytes, "scratch");
    }
    if (!dry()) context->SetScratch(data, bytes, static_cast<StreamName>(i));
  }
  committed_ = true;
  if (!dry()) context->SetInputs(inputs_);
}

int64_t Memory::total() const { return std::accumulate(bytes_.begin(), bytes_.end(), int64_t{0}); }

}  // namespace overtok

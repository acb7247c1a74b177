#include "trainer/host_tensors.h"

#include <utility>

#include "core/host_memory.h"

namespace overtok {

HostTensors::HostTensors(const Context& context, std::vector<ShardedTensor> tensors)
    : context_(context), device_(std::move(tensors)), host_(device_) {
  if (!context.device().own_memory()) return;
  for (ShardedTensor& entry : host_) {
    entry.tensor = Tensor(AllocatePages(entry.tensor.bytes(), entry.name), entry.tensor.dtype(),
                          entry.tensor.shape());
  }
}

HostTensors::~HostTensors() {
  if (!context_.device().own_memory()) return;
  for (const ShardedTensor& entry : host_) FreePages(entry.tensor.raw(), entry.tensor.bytes());
}

void HostTensors::Read() {
  if (!context_.device().own_memory()) return;
  for (size_t i = 0; i < host_.size(); ++i) context_.Read(device_[i].tensor, host_[i].tensor.raw());
}

void HostTensors::Write() const {
  if (!context_.device().own_memory()) return;
  for (size_t i = 0; i < host_.size(); ++i)
    context_.Write(host_[i].tensor.raw(), device_[i].tensor);
}

}  // namespace overtok

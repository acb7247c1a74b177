// HostTensors: tensors of a device in host memory, for what reads or fills them there (files,
// hashes, other ranks). On the CPU they are the tensors themselves, and nothing is copied.
#pragma once

#include <vector>

#include "core/context.h"
#include "core/sharding.h"

namespace overtok {

class HostTensors {
 public:
  // On a device: host memory for all of them, given back when this goes. `context` must outlive it.
  HostTensors(const Context& context, std::vector<ShardedTensor> tensors);
  ~HostTensors();
  HostTensors(const HostTensors&) = delete;
  HostTensors& operator=(const HostTensors&) = delete;

  // The same names and regions, tensors in host memory.
  const std::vector<ShardedTensor>& tensors() const { return host_; }
  void Read();         // from the device, all of them; waits
  void Write() const;  // to the device

 private:
  const Context& context_;
  std::vector<ShardedTensor> device_, host_;
};

}  // namespace overtok

#include "core/context.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace overtok {

const char* NameOf(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return "cpu";
    case DeviceKind::kCuda:
      return "cuda";
    case DeviceKind::kEmulated:
      return "emulated";
  }
  return "unknown";
}

double Device::HostSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Context::SetInputs(const Inputs& inputs) {
  auto twins = std::make_shared<Twins>();
  twins->groups = inputs;
  for (const std::vector<Device::Piece>& group : inputs)
    twins->all.insert(twins->all.end(), group.begin(), group.end());
  std::sort(twins->all.begin(), twins->all.end(),
            [](const Device::Piece& a, const Device::Piece& b) { return a.from < b.from; });
  inputs_ = std::move(twins);
}

Tensor Context::OnDevice(const Tensor& input) const {
  if (!device_->own_memory() || input.elements() == 0) return input;
  OT_CHECK(inputs_ != nullptr) << "no inputs were taken";
  const std::vector<Device::Piece>& all = inputs_->all;
  const char* data = static_cast<const char*>(input.raw());
  const auto after =
      std::upper_bound(all.begin(), all.end(), data,
                       [](const char* at, const Device::Piece& piece) { return at < piece.from; });
  OT_CHECK(after != all.begin()) << "a tensor " << input.shape().ToString() << " is no input";
  const Device::Piece& piece = *std::prev(after);
  const int64_t offset = data - static_cast<const char*>(piece.from);
  OT_CHECK_LE(offset + input.bytes(), piece.bytes)
      << "a tensor " << input.shape().ToString() << " is no input";
  return Tensor(static_cast<char*>(piece.to) + offset, input.dtype(), input.shape());
}

void Context::SendInputs(InputGroup group) const {
  if (inputs_ == nullptr) return;
  const std::vector<Device::Piece>& pieces = inputs_->groups[static_cast<size_t>(group)];
  if (!pieces.empty()) device_->Send(pieces, stream_);
}

void Context::Read(const Tensor& tensor, void* to) const {
  if (tensor.elements() > 0) device_->Read({to, tensor.raw(), tensor.bytes()});
}

void Context::Write(const void* from, const Tensor& tensor) const {
  if (tensor.elements() == 0) return;
  const Device::Piece piece = {tensor.raw(), from, tensor.bytes()};
  device_->Send({&piece, 1}, stream_);
}

}  // namespace overtok

#include "core/context.h"

#include <algorithm>

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

void Context::SetInputs(std::vector<Device::Piece> inputs) {
  inputs_ = std::move(inputs);
  std::sort(inputs_.begin(), inputs_.end(),
            [](const Device::Piece& a, const Device::Piece& b) { return a.from < b.from; });
}

Tensor Context::OnDevice(const Tensor& input) const {
  if (!device_->own_memory() || input.elements() == 0) return input;
  const char* data = static_cast<const char*>(input.raw());
  const auto after =
      std::upper_bound(inputs_.begin(), inputs_.end(), data,
                       [](const char* at, const Device::Piece& piece) { return at < piece.from; });
  OT_CHECK(after != inputs_.begin()) << "a tensor " << input.shape().ToString() << " is no input";
  const Device::Piece& piece = *std::prev(after);
  const int64_t offset = data - static_cast<const char*>(piece.from);
  OT_CHECK_LE(offset + input.bytes(), piece.bytes)
      << "a tensor " << input.shape().ToString() << " is no input";
  return Tensor(static_cast<char*>(piece.to) + offset, input.dtype(), input.shape());
}

void Context::SendInputs() const {
  if (!inputs_.empty()) device_->Send(inputs_);
}

void Context::Read(const Tensor& tensor, void* to) const {
  if (tensor.elements() > 0) device_->Read({to, tensor.raw(), tensor.bytes()});
}

void Context::Write(const void* from, const Tensor& tensor) const {
  if (tensor.elements() == 0) return;
  const Device::Piece piece = {tensor.raw(), from, tensor.bytes()};
  device_->Send({&piece, 1});
}

}  // namespace overtok

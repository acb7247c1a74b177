// Memory of the emulated device: host memory that only kernels and transfers may touch. Between
// them it is protected, so that host code that touches a tensor stops at once, as it would beside a
// GPU.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace overtok::emulation {

// 256-byte aligned, zero-filled, with guard zones around; null for 0 bytes.
void* AllocateDevice(int64_t bytes, absl::string_view name);
void FreeDevice(void* data, int64_t bytes);
int64_t DeviceBytesUsed();
// Whether an address is one of the device's, allocated or not.
bool IsDevice(const void* address);

// While one lives, the memory can be touched, by every OS thread.
class DeviceAccess {
 public:
  DeviceAccess();
  ~DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  DeviceAccess& operator=(const DeviceAccess&) = delete;
};

}  // namespace overtok::emulation

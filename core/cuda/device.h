// The CUDA device: a GPU with two streams that ops and transfers run on, neither of which waits for
// CUDA's default stream. Memory comes from an arena (core/cuda/arena.h), transfers go through
// pinned host memory (core/cuda/staging.h), ops that are asked for together become CUDA graphs
// (core/cuda/graphs.h), and the host waits only for Read, FinishRead, Wait and Free. This header
// needs no CUDA; programs built without the toolkit get core/cuda/device_absent.cc, in which there
// is no device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/device.h"

namespace overtok {

// Whether this program was built with CUDA, a driver answers, and it has a device that this
// process may see (CUDA_VISIBLE_DEVICES). Never an error.
bool CudaIsThere();

// PCI addresses of the devices that this process may see, by ordinal; at least one, else the errors
// of CudaDevice.
absl::StatusOr<std::vector<std::string>> CudaDevices();

// The device of this process: number `ordinal` of those that the process may see, which is the
// process's rank among those of its host. Made at the first call, there once in a process: a later
// call for another ordinal is an error. Unavailable or FailedPrecondition: names what is missing
// (CUDA in this build, a driver or a newer one, a device, so many devices, compute capability 8.0,
// cuBLASLt).
//
// Its methods may be called from several threads; kernels are launched by the thread that made it,
// which is also the only one to call RunTogether, during which other threads' sends and reads wait.
// A failed transfer or wait aborts with what was waited for and CUDA's reason, which may be the
// fault of an op before.
absl::StatusOr<Device*> CudaDevice(int ordinal);

namespace cuda {

// Memory that host and device may touch in turn, for tests of ops; zero-filled. Between ops that
// use it and the host's reading stands Device::Wait. Aborts without a device.
void* AllocateManaged(int64_t bytes);
void FreeManaged(void* data);

}  // namespace cuda
}  // namespace overtok

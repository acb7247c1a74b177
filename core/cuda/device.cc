#include "core/cuda/device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/arena.h"
#include "core/cuda/matmul.h"
#include "core/status.h"

namespace overtok {
namespace cuda {

const Kernels& CudaKernels();  // core/cuda/kernels.cu

}  // namespace cuda

namespace {

// Asynchronous errors show up at whatever call comes next, and stay.
void CheckCuda(cudaError_t error, const std::string& during) {
  OT_CHECK(error == cudaSuccess)
      << "CUDA failed while " << during << ": " << cudaGetErrorString(error) << " ("
      << cudaGetErrorName(error)
      << "); an op before may be the cause: run again with CUDA_LAUNCH_BLOCKING=1 to see which";
}

absl::Status StatusOf(cudaError_t error, absl::string_view during) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("CUDA failed while ", during, ": ",
                                             cudaGetErrorString(error), " (",
                                             cudaGetErrorName(error), ")"));
}

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Pinned host memory that a transfer passes through, and the event after the transfer.
class Staging {
 public:
  Staging() {
    CheckCuda(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "making an event");
  }
  // After the transfer before: at least so many bytes.
  char* Room(int64_t bytes) {
    CheckCuda(cudaEventSynchronize(done_), "waiting for a copy to the device before");
    if (bytes > bytes_) {
      if (data_ != nullptr) CheckCuda(cudaFreeHost(data_), "giving back pinned memory");
      void* data = nullptr;
      CheckCuda(cudaMallocHost(&data, static_cast<size_t>(bytes)),
                absl::StrCat("taking ", bytes, " bytes of pinned memory"));
      data_ = static_cast<char*>(data);
      bytes_ = bytes;
    }
    return data_;
  }
  void Sent(cudaStream_t stream) {
    CheckCuda(cudaEventRecord(done_, stream), "recording an event");
  }

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  cudaEvent_t done_ = nullptr;
};

// Lives until the process ends, like the driver's own state: nothing is given back.
class Cuda : public Device {
 public:
  Cuda(int ordinal, cudaStream_t stream, int64_t total)
      : ordinal_(ordinal),
        stream_(stream),
        total_(total),
        arena_([](int64_t bytes) { return TakeChunk(bytes); },
               [](void* data) { CheckCuda(cudaFree(data), "giving back device memory"); }) {}

  int ordinal() const { return ordinal_; }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const Kernels& kernels() const override { return cuda::CudaKernels(); }
  void* stream(StreamName /*name*/) const override { return stream_; }

  void* Allocate(int64_t bytes, absl::string_view name) override {
    if (bytes == 0) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    UseDevice();
    void* data = arena_.Allocate(bytes);
    OT_CHECK(data != nullptr) << "the device has no " << bytes << " bytes left for "
                              << std::string(name) << ": " << FreeBytes() << " of " << total_
                              << " are free";
    CheckCuda(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream_),
              absl::StrCat("clearing ", name));
    return data;
  }
  void Free(void* data, int64_t bytes) override {
    if (data == nullptr) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    UseDevice();
    CheckCuda(cudaStreamSynchronize(stream_), "waiting for the ops before memory is freed");
    arena_.Free(data, bytes);
  }
  bool Owns(const void* data) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return arena_.Owns(data);
  }
  int64_t total_bytes() const override { return total_; }
  int64_t free_bytes() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return FreeBytes();
  }

  // Pieces are packed into one staging buffer and copied from there; what is larger than a buffer
  // goes in parts. The host waits when the last transfer but one has not run yet.
  void Send(std::span<const Piece> pieces, StreamName /*stream*/) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    UseDevice();
    int64_t left = 0;
    for (const Piece& piece : pieces) left += RoundUp(piece.bytes);
    size_t at = 0;
    int64_t offset = 0;  // in piece `at`
    while (at < pieces.size()) {
      Staging& staging = staging_[next_staging_];
      next_staging_ = (next_staging_ + 1) % staging_.size();
      const int64_t capacity =
          std::min(kMostStaging, std::max(kLeastStaging, RoundUpToPower(left)));
      char* room = staging.Room(capacity);
      int64_t used = 0;
      while (at < pieces.size() && used < capacity) {
        const Piece& piece = pieces[at];
        const int64_t bytes = std::min(piece.bytes - offset, capacity - used);
        if (bytes > 0) {
          std::memcpy(room + used, static_cast<const char*>(piece.from) + offset,
                      static_cast<size_t>(bytes));
          CheckCuda(cudaMemcpyAsync(static_cast<char*>(piece.to) + offset, room + used,
                                    static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
                    absl::StrCat("starting a copy of ", bytes, " bytes to the device"));
        }
        used += RoundUp(bytes);
        offset += bytes;
        if (offset == piece.bytes) {
          ++at;
          offset = 0;
        }
      }
      staging.Sent(stream_);
      left -= used;
    }
  }

  void Read(const Piece& piece) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    UseDevice();
    for (int64_t offset = 0; offset < piece.bytes;) {
      const int64_t bytes = std::min(piece.bytes - offset, kMostStaging);
      char* room = reading_.Room(std::max(kLeastStaging, RoundUpToPower(bytes)));
      CheckCuda(cudaMemcpyAsync(room, static_cast<const char*>(piece.from) + offset,
                                static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
                absl::StrCat("starting a copy of ", bytes, " bytes from the device"));
      CheckCuda(cudaStreamSynchronize(stream_),
                absl::StrCat("waiting for ", bytes, " bytes from the device"));
      std::memcpy(static_cast<char*>(piece.to) + offset, room, static_cast<size_t>(bytes));
      offset += bytes;
    }
  }

  // Without the lock: other threads may go on sending.
  void Wait() override {
    UseDevice();
    CheckCuda(cudaStreamSynchronize(stream_), "waiting for the ops and transfers of the device");
  }

 private:
  // A batch's inputs fit into one buffer (at 2^20 tokens and six tables about 60 MB); weights that
  // are sent once go in parts.
  static constexpr int64_t kLeastStaging = int64_t{1} << 20, kMostStaging = int64_t{64} << 20;

  static int64_t RoundUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  static int64_t RoundUpToPower(int64_t bytes) {
    int64_t power = 1;
    while (power < bytes) power *= 2;
    return power;
  }
  static void* TakeChunk(int64_t bytes) {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the next call shall not report it
      return nullptr;
    }
    CheckCuda(error, absl::StrCat("taking ", bytes, " bytes of device memory"));
    return data;
  }
  // The current device is a thread's own.
  void UseDevice() const { CheckCuda(cudaSetDevice(ordinal_), "selecting the device"); }
  int64_t FreeBytes() const {
    UseDevice();
    size_t free = 0, all = 0;
    CheckCuda(cudaMemGetInfo(&free, &all), "asking for the free memory");
    return static_cast<int64_t>(free) + arena_.free_bytes();
  }

  const int ordinal_;
  cudaStream_t const stream_;
  const int64_t total_;
  mutable std::mutex mutex_;
  cuda::Arena arena_;
  std::array<Staging, 2> staging_;
  size_t next_staging_ = 0;
  Staging reading_;
};

// How many devices the process may see; at least one.
absl::StatusOr<int> CountDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  int driver = 0;
  cudaDriverGetVersion(&driver);
  if (driver == 0) {
    return absl::UnavailableError(
        "no CUDA driver was found (libcuda.so.1): install NVIDIA's driver, or use another device");
  }
  if (error == cudaErrorInsufficientDriver) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the CUDA driver is for CUDA ", Version(driver), ", this program was built with CUDA ",
        Version(CUDART_VERSION), ": install a newer driver, or build with an older toolkit"));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    return absl::UnavailableError(absl::StrCat(
        "the CUDA driver shows no device",
        visible != nullptr ? absl::StrCat(" (CUDA_VISIBLE_DEVICES is \"", visible, "\")") : "",
        ": nvidia-smi should list one"));
  }
  OT_RETURN_IF_ERROR(StatusOf(error, "counting devices"));
  return count;
}

absl::StatusOr<Cuda*> Make(int ordinal) {
  OT_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (ordinal < 0 || ordinal >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", ordinal, " of this host needs a device of its own, but only ",
                     count, count == 1 ? " is" : " are",
                     " there: start at most as many processes on a host as it has devices "
                     "(CUDA_VISIBLE_DEVICES hides others)"));
  }
  cudaDeviceProp facts = {};
  OT_RETURN_IF_ERROR(StatusOf(cudaGetDeviceProperties(&facts, ordinal), "asking what a device is"));
  if (facts.major < 8) {
    return absl::FailedPreconditionError(
        absl::StrCat("device ", ordinal, " (", facts.name, ") has compute capability ", facts.major,
                     ".", facts.minor, ", expected 8.0 or above (A100, H100, H200)"));
  }
  OT_RETURN_IF_ERROR(StatusOf(cudaSetDevice(ordinal), "selecting the device"));
  cudaStream_t stream = nullptr;
  OT_RETURN_IF_ERROR(
      StatusOf(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
  auto device = std::make_unique<Cuda>(ordinal, stream, static_cast<int64_t>(facts.totalGlobalMem));
  OT_RETURN_IF_ERROR(cuda::OpenCublasLt());
  OT_RETURN_IF_ERROR(
      cuda::StartMatmul(device->Allocate(cuda::kMatmulWorkspaceBytes, "workspace of products"),
                        cuda::kMatmulWorkspaceBytes));
  return device.release();
}

}  // namespace

bool CudaIsThere() {
  int count = 0;
  const bool there = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!there) cudaGetLastError();
  return there;
}

absl::StatusOr<std::vector<std::string>> CudaDevices() {
  OT_ASSIGN_OR_RETURN(const int count, CountDevices());
  std::vector<std::string> addresses;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    char address[32] = "";
    OT_RETURN_IF_ERROR(StatusOf(cudaDeviceGetPCIBusId(address, sizeof address, ordinal),
                                absl::StrCat("asking for the address of device ", ordinal)));
    addresses.emplace_back(address);
  }
  return addresses;
}

absl::StatusOr<Device*> CudaDevice(int ordinal) {
  static std::mutex mutex;
  static Cuda* device = nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  if (device == nullptr) {
    OT_ASSIGN_OR_RETURN(device, Make(ordinal));
  }
  if (device->ordinal() != ordinal) {
    return absl::FailedPreconditionError(absl::StrCat(
        "this process uses device ", device->ordinal(), " already, asked for ", ordinal));
  }
  return device;
}

namespace cuda {

void* AllocateManaged(int64_t bytes) {
  void* data = nullptr;
  CheckCuda(cudaMallocManaged(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))),
            absl::StrCat("taking ", bytes, " bytes of managed memory"));
  CheckCuda(cudaDeviceSynchronize(), "waiting for the device");
  std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

void FreeManaged(void* data) { CheckCuda(cudaFree(data), "giving back managed memory"); }

}  // namespace cuda
}  // namespace overtok

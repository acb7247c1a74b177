#include "core/cuda/device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/cuda/arena.h"
#include "core/cuda/check_cuda.h"
#include "core/cuda/graphs.h"
#include "core/cuda/matmul.h"
#include "core/cuda/staging.h"
#include "core/status.h"

namespace overtok {
namespace cuda {

const Kernels& CudaKernels();  // core/cuda/kernels.cu

}  // namespace cuda

namespace {

using cuda::CheckCuda;
using cuda::StatusOf;

std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Whether this thread is inside RunTogether.
thread_local bool together = false;

// Lives until the process ends, like the driver's own state: nothing is given back.
class Cuda : public Device {
 public:
  using Streams = std::array<cudaStream_t, kStreams>;

  Cuda(int ordinal, const Streams& streams, int64_t total)
      : ordinal_(ordinal),
        streams_(streams),
        total_(total),
        arena_([](int64_t bytes) { return TakeChunk(bytes); },
               [](void* data) { CheckCuda(cudaFree(data), "giving back device memory"); }) {
    for (size_t i = 0; i < kStreams; ++i) {
      for (cudaEvent_t* event : {&order_[i], &waited_[i]}) {
        CheckCuda(cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
      }
    }
    for (cudaEvent_t& stamp : stamp_events_) CheckCuda(cudaEventCreate(&stamp), "making an event");
  }

  int ordinal() const { return ordinal_; }
  DeviceKind kind() const override { return DeviceKind::kCuda; }
  const Kernels& kernels() const override { return cuda::CudaKernels(); }
  void* stream(StreamName name) const override { return Stream(name); }

  // What cudaStreamWaitEvent waits for is settled as it is called: one event for each direction can
  // be recorded again at once.
  void Order(StreamName earlier, StreamName later) override {
    if (earlier == later) return;
    if (together) return PutOrder(earlier, later);  // RunTogether holds the lock
    const auto lock = LockStreams("Order");
    PutOrder(earlier, later);
  }

  void* Allocate(int64_t bytes, absl::string_view name) override {
    if (bytes == 0) return nullptr;
    void* data = nullptr;
    const auto streams = LockStreams("Allocate");
    {
      const std::lock_guard<std::mutex> lock(memory_mutex_);
      data = arena_.Allocate(bytes);
      OT_CHECK(data != nullptr) << "the device has no " << bytes << " bytes left for "
                                << std::string(name) << ": " << FreeBytes() << " of " << total_
                                << " are free";
    }
    CheckCuda(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), Stream(StreamName::kMain)),
              "clearing ", name);
    PutOrder(StreamName::kMain, StreamName::kSide);
    return data;
  }
  void Free(void* data, int64_t bytes) override {
    if (data == nullptr) return;
    WaitFor("Free");
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    arena_.Free(data, bytes);
  }

  // Pinned pages, at the same address for the device.
  void* AllocateOnHost(int64_t bytes, absl::string_view name) override {
    if (bytes == 0) return nullptr;
    const auto streams = LockStreams("AllocateOnHost");
    void *data = nullptr, *on_device = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, static_cast<size_t>(bytes),
                                            cudaHostAllocPortable | cudaHostAllocMapped);
    OT_CHECK(error != cudaErrorMemoryAllocation)
        << "the host has no " << bytes << " bytes of pinned memory left for " << std::string(name);
    CheckCuda(error, "taking ", bytes, " bytes of pinned memory for ", name);
    CheckCuda(cudaHostGetDevicePointer(&on_device, data, 0), "asking where the device sees ", name);
    OT_CHECK(on_device == data) << "the device sees the host's memory at other addresses";
    Clear(static_cast<char*>(data), bytes);
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    on_host_[reinterpret_cast<uintptr_t>(data)] = bytes;
    return data;
  }
  void FreeOnHost(void* data, int64_t bytes) override {
    if (data == nullptr) return;
    WaitFor("FreeOnHost");
    {
      const std::lock_guard<std::mutex> lock(memory_mutex_);
      const auto block = on_host_.find(reinterpret_cast<uintptr_t>(data));
      OT_CHECK(block != on_host_.end() && block->second == bytes) << "no block of the host's";
      on_host_.erase(block);
    }
    CheckCuda(cudaFreeHost(data), "giving back pinned memory");
  }

  bool Owns(const void* data) const override {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    if (arena_.Owns(data)) return true;
    const auto address = reinterpret_cast<uintptr_t>(data);
    const auto after = on_host_.upper_bound(address);
    if (after == on_host_.begin()) return false;
    const auto& [begin, bytes] = *std::prev(after);
    return address - begin < static_cast<uintptr_t>(bytes);
  }
  int64_t total_bytes() const override { return total_; }
  int64_t free_bytes() const override {
    const std::lock_guard<std::mutex> lock(memory_mutex_);
    return FreeBytes();
  }

  void Send(std::span<const Piece> pieces, StreamName stream) override {
    const auto lock = LockStreams("Send");
    sending_.Send(pieces, Stream(stream));
  }
  void Read(const Piece& piece) override {
    const auto lock = LockStreams("Read");
    reading_.Read(piece, Stream(StreamName::kMain));
  }
  int64_t StartRead(std::span<const Piece> pieces) override {
    const auto lock = LockStreams("StartRead");
    return reads_.Start(pieces, Stream(StreamName::kMain));
  }
  // Without the lock, as Wait(): other threads may go on sending.
  void FinishRead(int64_t ticket) override {
    CheckNotTogether("FinishRead");
    UseDevice();
    reads_.Finish(ticket);
  }
  void Wait() override { WaitFor("Wait"); }

  // The first call of a number runs as it is asked for: it loads the kernels, and products get
  // their algorithms, of which a capture allows no part for certain. Later calls are captured and
  // launched as a graph.
  //
  // Captured in the relaxed mode. In the other two, what a capture cannot record is an error, in
  // this thread or in all; and a kernel that is used for the first time in a later call (of a block
  // that takes the full softmax, say) is loaded as it is captured, which counts as such. The thread
  // that watches NCCL's transfers goes on asking for events meanwhile; threads that put something
  // on these streams wait for the lock.
  void RunTogether(int64_t number, absl::FunctionRef<void()> work) override {
    const auto lock = LockStreams("RunTogether");
    cudaStream_t const main = Stream(StreamName::kMain);
    const bool captures = graphs_.Meet(number);
    if (captures) {
      CheckCuda(cudaStreamBeginCapture(main, cudaStreamCaptureModeRelaxed),
                "beginning to capture ops of RunTogether ", number);
    }
    PutOrder(StreamName::kMain, StreamName::kSide);
    together = true;
    work();
    together = false;
    PutOrder(StreamName::kSide, StreamName::kMain);
    if (!captures) return;
    cudaGraph_t graph = nullptr;
    CheckCuda(cudaStreamEndCapture(main, &graph), "capturing ops of RunTogether ", number);
    graphs_.Launch(number, graph, main);
  }

  void Stamp(int number) override {
    const auto lock = LockStreams("Stamp");
    CheckCuda(
        cudaEventRecord(stamp_events_[static_cast<size_t>(number)], Stream(StreamName::kMain)),
        "stamping");
  }
  double SecondsBetween(int from, int to) override {
    UseDevice();
    float milliseconds = 0;
    CheckCuda(cudaEventElapsedTime(&milliseconds, stamp_events_[static_cast<size_t>(from)],
                                   stamp_events_[static_cast<size_t>(to)]),
              "asking for the time between stamps ", from, " and ", to,
              ", which have to lie behind the device");
    return static_cast<double>(milliseconds) / 1000;
  }

 private:
  static void* TakeChunk(int64_t bytes) {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(bytes));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the next call shall not report it
      return nullptr;
    }
    CheckCuda(error, "taking ", bytes, " bytes of device memory");
    return data;
  }
  // Tables have tens of gigabytes: by all threads.
  static void Clear(char* data, int64_t bytes) {
    constexpr int64_t kPiece = int64_t{16} << 20;
    const int64_t pieces = (bytes + kPiece - 1) / kPiece;
#pragma omp parallel for
    for (int64_t i = 0; i < pieces; ++i) {
      const int64_t begin = i * kPiece;
      std::memset(data + begin, 0, static_cast<size_t>(std::min(kPiece, bytes - begin)));
    }
  }

  cudaStream_t Stream(StreamName name) const { return streams_[static_cast<size_t>(name)]; }
  static void CheckNotTogether(const char* call) {
    OT_CHECK(!together) << "Device::" << call
                        << " inside RunTogether, whose ops run when all of them are known";
  }
  // One thread at a time puts something on the streams.
  std::unique_lock<std::mutex> LockStreams(const char* call) {
    CheckNotTogether(call);
    std::unique_lock<std::mutex> lock(streams_mutex_);
    UseDevice();
    return lock;
  }
  void PutOrder(StreamName earlier, StreamName later) {
    cudaEvent_t const event = order_[static_cast<size_t>(earlier)];
    CheckCuda(cudaEventRecord(event, Stream(earlier)), "recording an event");
    CheckCuda(cudaStreamWaitEvent(Stream(later), event, 0), "ordering the streams");
  }
  // For both streams. Not by cudaStreamSynchronize, which a capture that another thread begins
  // meanwhile would not survive; a thread that waits later moves the events on, which this one then
  // waits for, too.
  void WaitFor(const char* call) {
    {
      const auto lock = LockStreams(call);
      for (size_t i = 0; i < kStreams; ++i) {
        CheckCuda(cudaEventRecord(waited_[i], streams_[i]), "recording an event");
      }
    }
    for (cudaEvent_t event : waited_) {
      CheckCuda(cudaEventSynchronize(event), "waiting for the ops and transfers of the device");
    }
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
  const Streams streams_;
  const int64_t total_;

  // Of what is put on the streams and of what follows here; taken before memory_mutex_.
  std::mutex streams_mutex_;
  std::array<cudaEvent_t, kStreams> order_{}, waited_{};  // by stream
  cuda::Sending sending_;
  cuda::Reading reading_;
  cuda::Graphs graphs_;
  cuda::StartedReads reads_;  // finished without the lock
  std::array<cudaEvent_t, kStamps> stamp_events_{};

  mutable std::mutex memory_mutex_;
  cuda::Arena arena_;
  std::map<uintptr_t, int64_t> on_host_;  // bytes by begin
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
  Cuda::Streams streams{};
  for (cudaStream_t& stream : streams) {
    OT_RETURN_IF_ERROR(
        StatusOf(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream"));
  }
  auto device =
      std::make_unique<Cuda>(ordinal, streams, static_cast<int64_t>(facts.totalGlobalMem));
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
  CheckCuda(cudaMallocManaged(&data, static_cast<size_t>(std::max<int64_t>(bytes, 1))), "taking ",
            bytes, " bytes of managed memory");
  CheckCuda(cudaDeviceSynchronize(), "waiting for the device");
  std::memset(data, 0, static_cast<size_t>(bytes));
  return data;
}

void FreeManaged(void* data) { CheckCuda(cudaFree(data), "giving back managed memory"); }

}  // namespace cuda
}  // namespace overtok

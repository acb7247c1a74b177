// Marks are events, made as many as are ever needed at once and used again. The communication
// stream has the highest priority, so that a transfer does not queue behind the blocks of kernels
// that were given to compute after it.
#include "core/cuda/nccl_streams_cuda.h"

#include <cuda_runtime_api.h>

#include <mutex>
#include <vector>

#include "core/check.h"

namespace overtok {
namespace {

void Check(cudaError_t error, const char* what) {
  OT_CHECK(error == cudaSuccess) << what << " failed: " << cudaGetErrorString(error);
}

class Streams final : public NcclStreams {
 public:
  Streams(int device, cudaStream_t compute, cudaStream_t communication)
      : device_(device), compute_(compute), communication_(communication), follow_(NewEvent()) {}
  ~Streams() override {
    // A failure here has been told by whoever met it first.
    for (const cudaEvent_t event : events_) cudaEventDestroy(event);
    cudaEventDestroy(follow_);
    cudaStreamDestroy(communication_);
  }
  void* communication() const override { return communication_; }
  void FollowCompute() override {
    CheckNotCaptured();
    Check(cudaEventRecord(follow_, compute_), "cudaEventRecord");
    Check(cudaStreamWaitEvent(communication_, follow_, 0), "cudaStreamWaitEvent");
  }
  int64_t Mark() override {
    const int64_t mark = Take();
    Check(cudaEventRecord(Event(mark), communication_), "cudaEventRecord");
    return mark;
  }
  void ComputeFollows(int64_t mark) override {
    CheckNotCaptured();
    Check(cudaStreamWaitEvent(compute_, Event(mark), 0), "cudaStreamWaitEvent");
  }
  absl::StatusOr<bool> Reached(int64_t mark) override {
    const cudaError_t error = cudaEventQuery(Event(mark));
    if (error == cudaSuccess) return true;
    if (error == cudaErrorNotReady) return false;
    return absl::InternalError(absl::StrCat("the GPU stopped while a transfer was in flight: ",
                                            cudaGetErrorString(error)));
  }
  void Release(int64_t mark) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(mark);
  }
  void Copy(void* to, const void* from, int64_t bytes) override {
    CheckNotCaptured();
    Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, compute_),
          "cudaMemcpyAsync");
  }
  void UseOnThisThread() override { Check(cudaSetDevice(device_), "cudaSetDevice"); }

 private:
  // A transfer that became part of a graph would have marks that nobody may ask for.
  void CheckNotCaptured() const {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    Check(cudaStreamIsCapturing(compute_, &status), "cudaStreamIsCapturing");
    OT_CHECK(status == cudaStreamCaptureStatusNone)
        << "ranks exchange nothing inside Device::RunTogether";
  }
  static cudaEvent_t NewEvent() {
    cudaEvent_t event = nullptr;
    Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return event;
  }
  cudaEvent_t Event(int64_t mark) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return events_[static_cast<size_t>(mark)];
  }
  int64_t Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (free_.empty()) {
      free_.push_back(static_cast<int64_t>(events_.size()));
      events_.push_back(NewEvent());
    }
    const int64_t mark = free_.back();
    free_.pop_back();
    return mark;
  }

  int device_;
  cudaStream_t compute_, communication_;
  cudaEvent_t follow_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> events_;  // by mark
  std::vector<int64_t> free_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclStreams>> CudaNcclStreams(void* compute) {
  int device = 0, least = 0, greatest = 0;
  cudaStream_t communication = nullptr;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithPriority(&communication, cudaStreamNonBlocking, greatest);
  }
  if (error != cudaSuccess) {
    return absl::InternalError(
        absl::StrCat("CUDA makes no stream for communication: ", cudaGetErrorString(error)));
  }
  return std::make_unique<Streams>(device, static_cast<cudaStream_t>(compute), communication);
}

}  // namespace overtok

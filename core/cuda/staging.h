// Transfers between host and device, through pinned host memory. Whoever calls has made the device
// current and sees to it that one thread at a time puts something on a stream. Nothing is ever
// given back: the memory lives as long as the device, which is as long as the process.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "core/device.h"

namespace overtok::cuda {

// Pinned host memory and an event behind the last transfer that went through it.
class PinnedBuffer {
 public:
  PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  int64_t bytes() const { return bytes_; }
  // Whether the last transfer is done; until it is.
  bool Idle() const;
  void Wait() const;
  // The memory, of at least so many bytes; after Wait().
  char* Need(int64_t bytes);
  // The transfers that were put on a stream until now are what is waited for.
  void UsedOn(cudaStream_t stream);

 private:
  char* data_ = nullptr;
  int64_t bytes_ = 0;
  cudaEvent_t done_ = nullptr;
};

// To the device.
class Sending {
 public:
  // Pieces are packed into a buffer and copied from there; what is larger than a buffer goes in
  // parts. The host waits when no buffer is idle: when it is kBuffers transfers ahead of the
  // device. A buffer serves any stream; its event says when it is free again.
  void Send(std::span<const Device::Piece> pieces, cudaStream_t stream);

 private:
  // A training step sends up to three groups of inputs and is prepared while the one before runs.
  static constexpr size_t kBuffers = 6;
  PinnedBuffer& Take(int64_t bytes);

  std::array<PinnedBuffer, kBuffers> buffers_;
  std::array<int64_t, kBuffers> last_use_{};
  int64_t uses_ = 0;
};

// From the device, waiting for the stream.
class Reading {
 public:
  void Read(const Device::Piece& piece, cudaStream_t stream);

 private:
  PinnedBuffer buffer_;
};

// From the device, without waiting: Device::StartRead and FinishRead. Every read in flight has a
// buffer of its own. Finish may be called while another thread starts a read.
class StartedReads {
 public:
  int64_t Start(std::span<const Device::Piece> pieces, cudaStream_t stream);
  void Finish(int64_t ticket);

 private:
  struct Slot {
    bool open = false;
    std::vector<Device::Piece> pieces;
    char* values = nullptr;
    PinnedBuffer buffer;
  };
  std::mutex mutex_;  // of `open`
  std::array<Slot, Device::kReadsInFlight> slots_;
};

}  // namespace overtok::cuda

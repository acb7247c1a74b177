// The two streams of a rank that talks through NCCL: compute, on which ops are put, and
// communication, of its own, on which all groups of the rank put their transfers. One stream for
// all groups: transfers of one rank run in the order in which they were started, which is the same
// on all ranks, so that no two of them wait for each other.
#pragma once

#include <cstdint>

#include "core/status.h"

namespace overtok {

class NcclStreams {
 public:
  virtual ~NcclStreams() = default;
  // The communication stream, as NCCL takes it (a cudaStream_t).
  virtual void* communication() const = 0;
  // What the communication stream is given from now on waits for what compute was given so far.
  virtual void FollowCompute() = 0;
  // A mark behind what the communication stream was given so far. Release() gives it back.
  virtual int64_t Mark() = 0;
  // What compute is given from now on waits for a mark; the host does not wait.
  virtual void ComputeFollows(int64_t mark) = 0;
  // Whether a mark was reached. An error: the device does not work any more, and why.
  virtual absl::StatusOr<bool> Reached(int64_t mark) = 0;
  virtual void Release(int64_t mark) = 0;
  // Bytes of the device to another place on it, in order with ops on compute.
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  // Called once by another thread that will ask Reached() and Release() marks.
  virtual void UseOnThisThread() = 0;
};

}  // namespace overtok

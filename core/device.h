// Device: where tensors live and ops run. The CPU's tensors are host memory; other devices have
// memory of their own, which host code must not touch: values go there and back through Context
// (core/context.h). Ops and transfers of one device run in the order in which they are asked for,
// on its stream, and the host does not wait for them unless it says so. A device has two streams:
// work on different streams may run at the same time or in any order, unless Order() says which
// comes first. The CPU does everything at once, in the order in which it is asked for.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace overtok {

struct Kernels;

enum class StreamName : uint8_t {
  kMain,  // what is not said to be elsewhere
  kSide,  // what overlaps with it
};
inline constexpr int kStreams = 2;

enum class DeviceKind : uint8_t {
  kCpu,
  kCuda,
  kEmulated,  // the CUDA backend's kernels, run on the host (core/cuda/emulation/)
};
const char* NameOf(DeviceKind kind);  // "cpu", "cuda", "emulated"

// What computes attention in bf16 on a device: the backend's own kernels, or on cuda NVIDIA's cuDNN
// (core/cuda/attention_cudnn.h). Never chosen by what is faster here and now: the two differ in
// bits.
enum class AttentionKind : uint8_t { kKernels, kCudnn };

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceKind kind() const = 0;
  virtual const Kernels& kernels() const = 0;
  // Tensors are not host memory.
  bool own_memory() const { return kind() != DeviceKind::kCpu; }
  // What AttentionScratch (core/ops/attention.h) is asked with. Setting it does nothing else: what
  // brings another implementation says so (StartCudnnAttention).
  AttentionKind attention() const { return attention_; }
  void SetAttention(AttentionKind attention) { attention_ = attention; }
  // The CUDA stream of a name; elsewhere null.
  virtual void* stream(StreamName /*name*/) const { return nullptr; }
  // What is asked of `later` from now on starts when all that `earlier` was asked until now is
  // done. The host does not wait.
  virtual void Order(StreamName /*earlier*/, StreamName /*later*/) {}

  // Zero-filled memory for tensors, 256-byte aligned; null for 0 bytes. Aborts, naming what it was
  // for, when there is none left: a plan is compared with what there is beforehand. Freeing waits
  // for all ops of all streams.
  virtual void* Allocate(int64_t bytes, absl::string_view name) = 0;
  virtual void Free(void* data, int64_t bytes) = 0;
  // The same in the host's memory, for tensors that are too large for the device's: ops reach it,
  // slowly (a GPU over its bus, from pinned pages); host code goes through Send and Read as for the
  // device's own.
  virtual void* AllocateOnHost(int64_t bytes, absl::string_view name) {
    return Allocate(bytes, name);
  }
  virtual void FreeOnHost(void* data, int64_t bytes) { Free(data, bytes); }
  // Whether `data` lies in memory of the device's own, which host code must not touch.
  virtual bool Owns(const void* data) const = 0;
  // Bytes of memory for tensors in all, and free now.
  virtual int64_t total_bytes() const = 0;
  virtual int64_t free_bytes() const = 0;

  // One piece of host memory and its place on the device.
  struct Piece {
    void* to = nullptr;
    const void* from = nullptr;
    int64_t bytes = 0;
  };
  // Host to device, in order with ops of the stream. The host's memory may change as soon as the
  // call returns.
  virtual void Send(std::span<const Piece> pieces, StreamName stream) = 0;
  // Device to host; waits for the ops before on the main stream, not for the side stream's.
  virtual void Read(const Piece& piece) = 0;
  // The same without waiting: the values as the ops before leave them, whatever comes after. They
  // are in host memory when FinishRead() returns, not before; it waits for those ops alone. At most
  // kReadsInFlight reads are open; the memory named in pieces stays until they are finished.
  static constexpr int kReadsInFlight = 4;
  virtual int64_t StartRead(std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) Read(piece);
    return 0;
  }
  virtual void FinishRead(int64_t /*ticket*/) {}
  // Until all ops and transfers of all streams are done.
  virtual void Wait() = 0;

  // Calls work(), which asks for ops of both streams, and hands them over as one op of the main
  // stream: a CUDA graph, which spares most of the time between short kernels. Calls of one
  // `number` that ask for the same ops with other arguments reuse the graph; numbers are few, a
  // graph is kept for each. Ops of the side stream within begin behind what the main stream was
  // asked for before, and what it is asked for later waits for them; they have no order with those
  // of the side stream outside. Within, Order() is the only other call: nothing is sent, read,
  // waited for, stamped, taken or freed, and ranks exchange nothing.
  virtual void RunTogether(int64_t /*number*/, absl::FunctionRef<void()> work) { work(); }

  // Marks a point of the main stream, to be measured: when all ops before it are done. Numbers are
  // reused.
  static constexpr int kStamps = 16;
  virtual void Stamp(int number) { stamps_[static_cast<size_t>(number)] = HostSeconds(); }
  // Seconds between two points that lie behind the device already (a read or wait behind them was
  // finished).
  virtual double SecondsBetween(int from, int to) {
    return stamps_[static_cast<size_t>(to)] - stamps_[static_cast<size_t>(from)];
  }

 protected:
  static double HostSeconds();

 private:
  AttentionKind attention_ = AttentionKind::kKernels;
  std::array<double, kStamps> stamps_{};
};

// The device of the CPU backend (core/cpu/), there once in a program.
Device* CpuDevice();

}  // namespace overtok

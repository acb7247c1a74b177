// The emulated device: the CUDA backend's kernels, run by the emulator on memory that only they and
// transfers touch. What a run does on it, launch by launch, is what it does on a GPU; products are
// the CPU backend's, with the same operands and accumulation in f32. What its two streams may do in
// either order can be tried out: emulation::ScopedSchedule (core/cuda/emulation/queues.h).
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "core/cuda/emulation/queues.h"
#include "core/device.h"

namespace overtok {

// There once in a program.
Device* EmulatedDevice();
// The same device with kernels whose every access is looked at (core/cuda/emulation/checker.h): for
// tests, of overtok_checked, which builds without address and thread sanitizers have.
Device* CheckedDevice();

namespace emulation {

// The emulated device with one way of compiling its kernels. All of them share one memory and one
// pair of queues.
class KernelDevice : public Device {
 public:
  explicit KernelDevice(const Kernels& kernels) : kernels_(kernels) {}
  DeviceKind kind() const override { return DeviceKind::kEmulated; }
  const Kernels& kernels() const override { return kernels_; }
  void Order(StreamName earlier, StreamName later) override { OrderQueues(earlier, later); }
  void* Allocate(int64_t bytes, absl::string_view name) override;
  void Free(void* data, int64_t bytes) override;
  bool Owns(const void* data) const override;
  int64_t total_bytes() const override;
  int64_t free_bytes() const override;
  void Send(std::span<const Piece> pieces, StreamName stream) override;
  void Read(const Piece& piece) override;
  int64_t StartRead(std::span<const Piece> pieces) override;
  void FinishRead(int64_t ticket) override;
  void Wait() override;
  void RunTogether(int64_t number, absl::FunctionRef<void()> work) override;
  void Stamp(int number) override;
  double SecondsBetween(int from, int to) override;

 private:
  // A read that was started: its values until they are asked for.
  struct Reading {
    bool open = false;
    int64_t position = 0;  // on the main stream
    std::vector<Piece> pieces;
    std::vector<char> values;
  };

  const Kernels& kernels_;
  std::mutex mutex_;  // of readings_, which are open
  std::array<Reading, kReadsInFlight> readings_;
  std::array<int64_t, kStamps> stamped_{};  // positions on the main stream
};

}  // namespace emulation
}  // namespace overtok

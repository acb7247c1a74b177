#include "core/cuda/emulation/device.h"

#include <cstring>
#include <utility>

#include "core/check.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/kernels.h"

namespace overtok {
namespace emulation {
namespace {

using Piece = Device::Piece;

// The pieces' bytes one behind the other.
std::vector<char> Gathered(std::span<const Piece> pieces) {
  const DeviceAccess access;
  std::vector<char> values;
  for (const Piece& piece : pieces) {
    const char* from = static_cast<const char*>(piece.from);
    values.insert(values.end(), from, from + piece.bytes);
  }
  return values;
}

void Scatter(const std::vector<char>& values, std::span<const Piece> pieces) {
  const DeviceAccess access;
  const char* from = values.data();
  for (const Piece& piece : pieces) {
    if (piece.bytes > 0) std::memcpy(piece.to, from, static_cast<size_t>(piece.bytes));
    from += piece.bytes;
  }
}

void Copy(std::span<const Piece> pieces) {
  const DeviceAccess access;
  for (const Piece& piece : pieces) {
    if (piece.bytes > 0) std::memcpy(piece.to, piece.from, static_cast<size_t>(piece.bytes));
  }
}

}  // namespace

void* KernelDevice::Allocate(int64_t bytes, absl::string_view name) {
  CheckNotTogether("Allocate");
  return AllocateDevice(bytes, name);
}

void KernelDevice::Free(void* data, int64_t bytes) {
  CheckNotTogether("Free");
  RunAll();
  FreeDevice(data, bytes);
}

bool KernelDevice::Owns(const void* data) const { return IsDevice(data); }
int64_t KernelDevice::total_bytes() const { return CpuDevice()->total_bytes(); }
int64_t KernelDevice::free_bytes() const { return CpuDevice()->free_bytes(); }

void KernelDevice::Send(std::span<const Piece> pieces, StreamName stream) {
  CheckNotTogether("Send");
  if (!Delays()) return Copy(pieces);
  Enqueue(stream, [places = std::vector<Piece>(pieces.begin(), pieces.end()),
                   values = Gathered(pieces)] { Scatter(values, places); });
}

void KernelDevice::Read(const Piece& piece) {
  CheckNotTogether("Read");
  RunMain();
  Copy({&piece, 1});
}

int64_t KernelDevice::StartRead(std::span<const Piece> pieces) {
  CheckNotTogether("StartRead");
  size_t ticket = 0;
  const std::lock_guard<std::mutex> lock(mutex_);
  while (ticket < readings_.size() && readings_[ticket].open) ++ticket;
  OT_CHECK(ticket < readings_.size()) << "more than " << kReadsInFlight << " reads are started";
  Reading& reading = readings_[ticket];
  reading.open = true;
  reading.pieces.assign(pieces.begin(), pieces.end());
  reading.position = 0;
  if (Delays()) {
    reading.position =
        Enqueue(StreamName::kMain, [&reading] { reading.values = Gathered(reading.pieces); });
  } else {
    reading.values = Gathered(pieces);
  }
  return static_cast<int64_t>(ticket);
}

void KernelDevice::FinishRead(int64_t ticket) {
  CheckNotTogether("FinishRead");
  OT_CHECK(ticket >= 0 && ticket < kReadsInFlight) << "no read has the ticket " << ticket;
  Reading& reading = readings_[static_cast<size_t>(ticket)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    OT_CHECK(reading.open) << "the read of ticket " << ticket << " was not started";
  }
  RunMainUntil(reading.position);
  Scatter(reading.values, reading.pieces);
  const std::lock_guard<std::mutex> lock(mutex_);
  reading.open = false;
}

void KernelDevice::Wait() {
  CheckNotTogether("Wait");
  RunAll();
}

void KernelDevice::RunTogether(int64_t /*number*/, absl::FunctionRef<void()> work) {
  emulation::RunTogether(work);
}

void KernelDevice::Stamp(int number) {
  CheckNotTogether("Stamp");
  int64_t& stamped = stamped_[static_cast<size_t>(number)];
  stamped = 0;
  if (Delays()) {
    stamped = Enqueue(StreamName::kMain, [this, number] { Device::Stamp(number); });
  } else {
    Device::Stamp(number);
  }
}

double KernelDevice::SecondsBetween(int from, int to) {
  OT_CHECK(IsDoneOnMain(stamped_[static_cast<size_t>(from)]) &&
           IsDoneOnMain(stamped_[static_cast<size_t>(to)]))
      << "stamps " << from << " and " << to << " lie ahead of the device: nothing has waited";
  return Device::SecondsBetween(from, to);
}

}  // namespace emulation

Device* EmulatedDevice() {
  static emulation::KernelDevice device(emulated::CudaKernels());
  return &device;
}

}  // namespace overtok

#include "core/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "core/check.h"
#include "core/cuda/check_cuda.h"

namespace overtok::cuda {
namespace {

// A batch's inputs fit into one buffer (at 2^20 tokens and six tables about 60 MB); weights that
// are sent once go in parts.
constexpr int64_t kLeastBuffer = int64_t{1} << 20, kMostBuffer = int64_t{64} << 20;

int64_t Padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

int64_t Padded(std::span<const Device::Piece> pieces) {
  int64_t bytes = 0;
  for (const Device::Piece& piece : pieces) bytes += Padded(piece.bytes);
  return bytes;
}

// Powers of two: sizes that vary a little do not take new memory again and again.
int64_t BufferFor(int64_t bytes) {
  int64_t power = kLeastBuffer;
  while (power < bytes) power *= 2;
  return power;
}

}  // namespace

PinnedBuffer::PinnedBuffer() {
  CheckCuda(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), "making an event");
}

bool PinnedBuffer::Idle() const {
  const cudaError_t error = cudaEventQuery(done_);
  if (error == cudaErrorNotReady) return false;
  CheckCuda(error, "asking for a transfer before");
  return true;
}

void PinnedBuffer::Wait() const {
  CheckCuda(cudaEventSynchronize(done_), "waiting for a transfer and the ops before it");
}

char* PinnedBuffer::Need(int64_t bytes) {
  if (bytes > bytes_) {
    if (data_ != nullptr) CheckCuda(cudaFreeHost(data_), "giving back pinned memory");
    void* data = nullptr;
    CheckCuda(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocDefault), "taking ",
              bytes, " bytes of pinned memory");
    data_ = static_cast<char*>(data);
    bytes_ = bytes;
  }
  return data_;
}

void PinnedBuffer::UsedOn(cudaStream_t stream) {
  CheckCuda(cudaEventRecord(done_, stream), "recording an event");
}

// The smallest idle one that is large enough, else the smallest idle one, else the one that was
// used first.
PinnedBuffer& Sending::Take(int64_t bytes) {
  size_t best = kBuffers, oldest = 0;
  for (size_t i = 0; i < kBuffers; ++i) {
    if (last_use_[i] < last_use_[oldest]) oldest = i;
    if (!buffers_[i].Idle()) continue;
    if (best == kBuffers) {
      best = i;
      continue;
    }
    const int64_t a = buffers_[i].bytes(), b = buffers_[best].bytes();
    const bool fits = a >= bytes, best_fits = b >= bytes;
    if (fits != best_fits ? fits : a < b) best = i;
  }
  const size_t taken = best == kBuffers ? oldest : best;
  buffers_[taken].Wait();
  last_use_[taken] = ++uses_;
  return buffers_[taken];
}

void Sending::Send(std::span<const Device::Piece> pieces, cudaStream_t stream) {
  int64_t left = Padded(pieces);
  size_t at = 0;
  int64_t offset = 0;  // in piece `at`
  while (at < pieces.size()) {
    const int64_t capacity = std::min(kMostBuffer, BufferFor(left));
    PinnedBuffer& buffer = Take(capacity);
    char* room = buffer.Need(capacity);
    int64_t used = 0;
    while (at < pieces.size() && used < capacity) {
      const Device::Piece& piece = pieces[at];
      const int64_t bytes = std::min(piece.bytes - offset, capacity - used);
      if (bytes > 0) {
        std::memcpy(room + used, static_cast<const char*>(piece.from) + offset,
                    static_cast<size_t>(bytes));
        CheckCuda(cudaMemcpyAsync(static_cast<char*>(piece.to) + offset, room + used,
                                  static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
                  "starting a copy of ", bytes, " bytes to the device");
      }
      used += Padded(bytes);
      offset += bytes;
      if (offset == piece.bytes) {
        ++at;
        offset = 0;
      }
    }
    buffer.UsedOn(stream);
    left -= used;
  }
}

void Reading::Read(const Device::Piece& piece, cudaStream_t stream) {
  for (int64_t offset = 0; offset < piece.bytes;) {
    const int64_t bytes = std::min(piece.bytes - offset, kMostBuffer);
    char* room = buffer_.Need(BufferFor(bytes));
    CheckCuda(cudaMemcpyAsync(room, static_cast<const char*>(piece.from) + offset,
                              static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
              "starting a copy of ", bytes, " bytes from the device");
    buffer_.UsedOn(stream);
    buffer_.Wait();
    std::memcpy(static_cast<char*>(piece.to) + offset, room, static_cast<size_t>(bytes));
    offset += bytes;
  }
}

int64_t StartedReads::Start(std::span<const Device::Piece> pieces, cudaStream_t stream) {
  size_t ticket = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (ticket < slots_.size() && slots_[ticket].open) ++ticket;
    OT_CHECK(ticket < slots_.size())
        << "more than " << Device::kReadsInFlight << " reads are started";
    slots_[ticket].open = true;
  }
  Slot& slot = slots_[ticket];
  slot.pieces.assign(pieces.begin(), pieces.end());
  // Whatever went through it was waited for by Finish.
  slot.values = slot.buffer.Need(BufferFor(Padded(pieces)));
  char* to = slot.values;
  for (const Device::Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    CheckCuda(cudaMemcpyAsync(to, piece.from, static_cast<size_t>(piece.bytes), cudaMemcpyDefault,
                              stream),
              "starting a copy of ", piece.bytes, " bytes from the device");
    to += Padded(piece.bytes);
  }
  slot.buffer.UsedOn(stream);
  return static_cast<int64_t>(ticket);
}

void StartedReads::Finish(int64_t ticket) {
  OT_CHECK(ticket >= 0 && ticket < Device::kReadsInFlight) << "no read has the ticket " << ticket;
  Slot& slot = slots_[static_cast<size_t>(ticket)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    OT_CHECK(slot.open) << "the read of ticket " << ticket << " was not started";
  }
  slot.buffer.Wait();
  const char* from = slot.values;
  for (const Device::Piece& piece : slot.pieces) {
    if (piece.bytes == 0) continue;
    std::memcpy(piece.to, from, static_cast<size_t>(piece.bytes));
    from += Padded(piece.bytes);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  slot.open = false;
}

}  // namespace overtok::cuda

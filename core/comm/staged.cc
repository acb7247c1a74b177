// Each transfer in flight has one block of host memory; a device tensor that is sent to several
// peers is read once. Host tensors are handed on as they are and never copied.
#include "core/comm/staged.h"

#include <utility>
#include <vector>

#include "core/comm/wrapped.h"
#include "core/host_memory.h"

namespace overtok {
namespace {

// Of tensors in a block: every dtype's, and a cache line's.
constexpr int64_t kAlignment = 64;

int64_t Padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Host memory that only grows; growing drops what it holds.
class Block {
 public:
  Block() = default;
  Block(Block&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Block& operator=(Block&&) = delete;
  ~Block() { FreePages(data_, bytes_); }
  char* Need(int64_t bytes) {
    if (bytes > bytes_) {
      FreePages(data_, bytes_);
      data_ = AllocatePages(bytes, "staging of transfers between ranks");
      bytes_ = bytes;
    }
    return static_cast<char*>(data_);
  }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

class StagedCommunicator final : public WrappedCommunicator {
 public:
  StagedCommunicator(std::unique_ptr<Communicator> host, Device* device)
      : WrappedCommunicator(std::move(host)), device_(device) {}
  ~StagedCommunicator() override {
    for (const Pending& pending : pending_) {
      OT_CHECK(!pending.used) << "a group ends with collectives in flight";
    }
  }
  void Broadcast(const Tensor& elements, int root, Traffic kind) override;
  std::unique_ptr<Communicator> Divide(int color) override {
    return Staged(host().Divide(color), device_);
  }

 protected:
  int64_t Start(std::span<const Message> sends, std::span<const Message> receives) override;
  void Finish(int64_t ticket) override;
  void CopyOwn(const Tensor& from, const Tensor& to) override;

 private:
  struct Pending {
    bool used = false;
    Request request;
    Block block;
    std::vector<Device::Piece> received;  // to the device
  };
  bool OnDevice(const Tensor& tensor) const { return device_->Owns(tensor.raw()); }
  void Read(const Tensor& from, void* to) { device_->Read({to, from.raw(), from.bytes()}); }
  void Send(const void* from, const Tensor& to) {
    const Device::Piece piece{to.raw(), from, to.bytes()};
    device_->Send({&piece, 1}, StreamName::kMain);
  }

  Device* device_;
  std::vector<Pending> pending_;  // by ticket
  Block now_;                     // for what is over when the call returns
  std::vector<Message> sends_, receives_;
};

int64_t StagedCommunicator::Start(std::span<const Message> sends,
                                  std::span<const Message> receives) {
  size_t ticket = 0;
  while (ticket < pending_.size() && pending_[ticket].used) ++ticket;
  if (ticket == pending_.size()) pending_.emplace_back();
  Pending& pending = pending_[ticket];
  pending.used = true;
  pending.received.clear();
  // A gather sends one tensor to all peers, one message behind the other.
  const auto is_repeated = [&](size_t i) {
    return i > 0 && sends[i].elements.raw() == sends[i - 1].elements.raw() &&
           sends[i].elements.bytes() == sends[i - 1].elements.bytes();
  };
  int64_t bytes = 0;
  for (size_t i = 0; i < sends.size(); ++i) {
    if (OnDevice(sends[i].elements) && !is_repeated(i)) bytes += Padded(sends[i].elements.bytes());
  }
  for (const Message& receive : receives) {
    if (OnDevice(receive.elements)) bytes += Padded(receive.elements.bytes());
  }
  char* next = pending.block.Need(bytes);
  const auto take = [&next](const Tensor& tensor) {
    const Tensor place(next, tensor.dtype(), tensor.shape());
    next += Padded(tensor.bytes());
    return place;
  };
  sends_.assign(sends.begin(), sends.end());
  for (size_t i = 0; i < sends_.size(); ++i) {
    Tensor& elements = sends_[i].elements;
    if (!OnDevice(elements)) continue;
    if (is_repeated(i)) {
      elements = Tensor(sends_[i - 1].elements.raw(), elements.dtype(), elements.shape());
    } else {
      elements = take(sends[i].elements);
      Read(sends[i].elements, elements.raw());
    }
  }
  receives_.assign(receives.begin(), receives.end());
  for (Message& receive : receives_) {
    if (!OnDevice(receive.elements)) continue;
    const Tensor place = take(receive.elements);
    pending.received.push_back({receive.elements.raw(), place.raw(), place.bytes()});
    receive.elements = place;
  }
  // The kind is this communicator's business; nobody asks the one beneath.
  pending.request = host().StartExchange(sends_, receives_, Traffic::kControl);
  return static_cast<int64_t>(ticket);
}

void StagedCommunicator::Finish(int64_t ticket) {
  Pending& pending = pending_[static_cast<size_t>(ticket)];
  OT_CHECK(pending.used) << "no collective of ticket " << ticket;
  pending.request.Wait();
  if (!pending.received.empty()) device_->Send(pending.received, StreamName::kMain);
  pending.used = false;
}

void StagedCommunicator::CopyOwn(const Tensor& from, const Tensor& to) {
  if (!OnDevice(from) && !OnDevice(to)) {
    WrappedCommunicator::CopyOwn(from, to);
  } else if (!OnDevice(from)) {
    Send(from.raw(), to);
  } else if (!OnDevice(to)) {
    Read(from, to.raw());
  } else {
    char* between = now_.Need(from.bytes());
    Read(from, between);
    Send(between, to);
  }
}

void StagedCommunicator::Broadcast(const Tensor& elements, int root, Traffic kind) {
  if (elements.elements() == 0 || !OnDevice(elements)) {
    BroadcastOnHost(elements, root, kind);
    return;
  }
  const Tensor between(now_.Need(elements.bytes()), elements.dtype(), elements.shape());
  if (rank() == root) Read(elements, between.raw());
  BroadcastOnHost(between, root, kind);
  if (rank() != root) Send(between.raw(), elements);
}

}  // namespace

std::unique_ptr<Communicator> Staged(std::unique_ptr<Communicator> host, Device* device) {
  if (!device->own_memory()) return host;
  return std::make_unique<StagedCommunicator>(std::move(host), device);
}

}  // namespace overtok

// A transfer is one group of sends and receives, or one all-gather, on the communication stream,
// after what compute was given before and with a mark behind it; waiting for it makes compute wait
// for the mark. Nothing is copied but messages to oneself, and nothing is summed here: NCCL's own
// reductions have no fixed order.
#include "core/cuda/nccl_communicator.h"

#include <utility>
#include <vector>

#include "core/comm/wrapped.h"

namespace overtok {
namespace {

// Types only tell sizes here, as nothing is computed; NCCL has no 16-bit integers, so u16 goes as
// the 16-bit type that is not bf16.
ncclDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kU16:
      return ncclFloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kU32:
      return ncclUint32;
    case DType::kU8:
      return ncclUint8;
    case DType::kI64:
      return ncclInt64;
    case DType::kU64:
      return ncclUint64;
  }
  OT_CHECK(false) << "dtype " << static_cast<int>(dtype);
  return ncclUint8;
}

// What all groups of a rank share. The watch goes first: it uses the streams.
struct Shared {
  Shared(Device* the_device, const NcclApi& the_api, std::unique_ptr<NcclStreams> the_streams,
         Communicator* world, const NcclLimits& limits)
      : device(the_device),
        api(the_api),
        streams(std::move(the_streams)),
        watch(api, streams.get(), world, limits) {}
  Device* device;
  NcclApi api;
  std::unique_ptr<NcclStreams> streams;
  NcclWatch watch;
};

class NcclCommunicator final : public WrappedCommunicator {
 public:
  NcclCommunicator(std::unique_ptr<Communicator> bootstrap, std::shared_ptr<Shared> shared)
      : WrappedCommunicator(std::move(bootstrap)), shared_(std::move(shared)) {
    if (size() > 1) Join();
  }
  ~NcclCommunicator() override;
  void Broadcast(const Tensor& elements, int root, Traffic kind) override;
  std::unique_ptr<Communicator> Divide(int color) override {
    return std::make_unique<NcclCommunicator>(host().Divide(color), shared_);
  }
  void Abort(int code) override {
    shared_->watch.AbortAll();
    host().Abort(code);
  }

 protected:
  int64_t Start(std::span<const Message> sends, std::span<const Message> receives) override;
  void Finish(int64_t ticket) override;
  Request StartGather(const Tensor& mine, const Tensor& all) override;
  void CopyOwn(const Tensor& from, const Tensor& to) override;

 private:
  struct Pending {
    bool used = false;
    Request on_host;
    int64_t mark = -1;  // of the part on the device; below 0: there is none
  };
  void Join();
  bool OnDevice(const Tensor& tensor) const { return shared_->device->Owns(tensor.raw()); }
  size_t NewTicket();
  // call(): puts a transfer on the communication stream. Returns its mark.
  template <class Call>
  int64_t Transfer(const char* what, NcclTransfer transfer, const Call& call);
  ncclResult_t Group(std::span<const Message> sends, std::span<const Message> receives) const;
  cudaStream_t stream() const { return static_cast<cudaStream_t>(streams().communication()); }
  NcclStreams& streams() const { return *shared_->streams; }

  std::shared_ptr<Shared> shared_;
  ncclComm_t comm_ = nullptr;  // null in a group of one
  int64_t transfers_ = 0;
  std::vector<Pending> pending_;  // by ticket
  // By where they lie; reused between calls.
  std::vector<Message> host_sends_, host_receives_, sends_, receives_;
};

void NcclCommunicator::Join() {
  ncclUniqueId id = {};
  if (rank() == 0) {
    shared_->watch.Do("ncclGetUniqueId", nullptr, [&] { return shared_->api.GetUniqueId(&id); });
  }
  host().Broadcast(Tensor(reinterpret_cast<uint8_t*>(id.internal), {int64_t{sizeof id.internal}}),
                   0, Traffic::kControl);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;  // whatever the environment says
  shared_->watch.Do("ncclCommInitRankConfig", nullptr, [&] {
    return shared_->api.CommInitRankConfig(&comm_, size(), id, rank(), &config);
  });
  shared_->watch.Add(comm_);
}

NcclCommunicator::~NcclCommunicator() {
  for (const Pending& pending : pending_) {
    OT_CHECK(!pending.used) << "a group ends with collectives in flight";
  }
  if (comm_ == nullptr) return;
  NcclWatch& watch = shared_->watch;
  watch.Drain();
  watch.Do("ncclCommFinalize", comm_, [&] { return shared_->api.CommFinalize(comm_); });
  watch.Remove(comm_);
  watch.Do("ncclCommDestroy", nullptr, [&] { return shared_->api.CommDestroy(comm_); });
}

size_t NcclCommunicator::NewTicket() {
  size_t ticket = 0;
  while (ticket < pending_.size() && pending_[ticket].used) ++ticket;
  if (ticket == pending_.size()) pending_.emplace_back();
  pending_[ticket].used = true;
  pending_[ticket].mark = -1;
  return ticket;
}

template <class Call>
int64_t NcclCommunicator::Transfer(const char* what, NcclTransfer transfer, const Call& call) {
  transfer.number = transfers_++;
  transfer.rank = rank();
  transfer.size = size();
  streams().FollowCompute();
  shared_->watch.Do(what, comm_, call);
  const int64_t mark = streams().Mark();
  shared_->watch.Await(mark, transfer);
  return mark;
}

ncclResult_t NcclCommunicator::Group(std::span<const Message> sends,
                                     std::span<const Message> receives) const {
  const NcclApi& api = shared_->api;
  ncclResult_t first = api.GroupStart();
  if (first != ncclSuccess) return first;
  const auto keep = [&first](ncclResult_t result) {
    if (first == ncclSuccess) first = result;
  };
  for (const Message& receive : receives) {
    const Tensor& elements = receive.elements;
    keep(api.Recv(elements.raw(), static_cast<size_t>(elements.elements()),
                  TypeOf(elements.dtype()), receive.peer, comm_, stream()));
  }
  for (const Message& send : sends) {
    const Tensor& elements = send.elements;
    keep(api.Send(elements.raw(), static_cast<size_t>(elements.elements()),
                  TypeOf(elements.dtype()), send.peer, comm_, stream()));
  }
  // Closed in any case; of several errors the first is told.
  const ncclResult_t end = api.GroupEnd();
  return first != ncclSuccess ? first : end;
}

int64_t NcclCommunicator::Start(std::span<const Message> sends, std::span<const Message> receives) {
  const auto divide = [this](std::span<const Message> messages, std::vector<Message>& on_host,
                             std::vector<Message>& on_device) {
    on_host.clear();
    on_device.clear();
    for (const Message& message : messages) {
      (OnDevice(message.elements) ? on_device : on_host).push_back(message);
    }
  };
  divide(sends, host_sends_, sends_);
  divide(receives, host_receives_, receives_);
  const size_t ticket = NewTicket();
  Pending& pending = pending_[ticket];
  if (!host_sends_.empty() || !host_receives_.empty()) {
    // The kind is this communicator's business; nobody asks the one beneath.
    pending.on_host = host().StartExchange(host_sends_, host_receives_, Traffic::kControl);
  }
  if (!sends_.empty() || !receives_.empty()) {
    NcclTransfer transfer;
    transfer.first_peer = receives_.empty() ? sends_.front().peer : receives_.front().peer;
    transfer.messages = static_cast<int64_t>(sends_.size() + receives_.size());
    for (const Message& message : sends_) transfer.bytes += message.elements.bytes();
    for (const Message& message : receives_) transfer.bytes += message.elements.bytes();
    pending.mark = Transfer("an exchange (ncclSend, ncclRecv)", transfer,
                            [&] { return Group(sends_, receives_); });
  }
  return static_cast<int64_t>(ticket);
}

Request NcclCommunicator::StartGather(const Tensor& mine, const Tensor& all) {
  OT_CHECK_EQ(OnDevice(mine), OnDevice(all)) << "an all-gather lies on the device or on the host";
  if (size() == 1 || !OnDevice(mine)) return Communicator::StartGather(mine, all);
  NcclTransfer transfer;
  transfer.gather = true;
  transfer.bytes = all.bytes();
  const size_t ticket = NewTicket();
  pending_[ticket].mark = Transfer("ncclAllGather", transfer, [&] {
    return shared_->api.AllGather(mine.raw(), all.raw(), static_cast<size_t>(mine.elements()),
                                  TypeOf(mine.dtype()), comm_, stream());
  });
  return Request(this, static_cast<int64_t>(ticket));
}

void NcclCommunicator::Finish(int64_t ticket) {
  Pending& pending = pending_[static_cast<size_t>(ticket)];
  OT_CHECK(pending.used) << "no collective of ticket " << ticket;
  pending.on_host.Wait();
  if (pending.mark >= 0) {
    streams().ComputeFollows(pending.mark);
    shared_->watch.LetGo(pending.mark);
  }
  pending.used = false;
}

void NcclCommunicator::CopyOwn(const Tensor& from, const Tensor& to) {
  if (OnDevice(from) && OnDevice(to)) {
    streams().Copy(to.raw(), from.raw(), from.bytes());
  } else if (OnDevice(from)) {
    shared_->device->Read({to.raw(), from.raw(), from.bytes()});
  } else if (OnDevice(to)) {
    const Device::Piece piece{to.raw(), from.raw(), from.bytes()};
    shared_->device->Send({&piece, 1}, StreamName::kMain);
  } else {
    WrappedCommunicator::CopyOwn(from, to);
  }
}

void NcclCommunicator::Broadcast(const Tensor& elements, int root, Traffic kind) {
  if (OnDevice(elements)) {
    Communicator::Broadcast(elements, root, kind);
  } else {
    BroadcastOnHost(elements, root, kind);
  }
}

}  // namespace

std::unique_ptr<Communicator> MakeNcclWorld(std::unique_ptr<Communicator> bootstrap, Device* device,
                                            const NcclApi& api,
                                            std::unique_ptr<NcclStreams> streams,
                                            const NcclLimits& limits) {
  auto shared = std::make_shared<Shared>(device, api, std::move(streams), bootstrap.get(), limits);
  return std::make_unique<NcclCommunicator>(std::move(bootstrap), std::move(shared));
}

}  // namespace overtok

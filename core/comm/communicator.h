// Communicator: collectives over a group of ranks, typed views only (never byte counts). Every sum
// runs in the order of ranks, whatever the library beneath does, so that equal layouts give equal
// bits; ordered sums of large tensors are an exchange and a local sum (core/ops/ordered_sum.h). One
// rank is the identity; code that trains always goes through this interface, so that more ranks
// change nothing in it.
//
// A collective that fails has lost a peer: nothing can be continued, so it ends the process with
// the reason, and the launcher ends the others. What a user can get wrong is agreed on before
// (core/comm/agreement.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/tensor.h"

namespace overtok {

// What bytes are sent for; `overtok plan` predicts each kind exactly.
enum class Traffic : uint8_t {
  kGradients,    // pieces of dense gradients to their owners
  kWeights,      // updated weights from their owners
  kActivations,  // token shards of a tensor group
  kLoss,         // row statistics of a divided softmax
  kTables,       // ids, rows and gradients of hashed tables
  kControl,      // norms, flags, losses
  kFiles,        // checkpoints, traces, evaluation
};
inline constexpr int kTrafficKinds = 7;
const char* NameOf(Traffic kind);  // "gradients", "weights", ...

class Communicator;

// A collective that was started; Wait() before its tensors are touched. Waiting twice is harmless;
// a Request that goes without having been waited for is a bug and aborts.
class Request {
 public:
  Request() = default;  // nothing to wait for
  Request(Communicator* communicator, int64_t ticket)
      : communicator_(communicator), ticket_(ticket) {}
  Request(Request&& other) noexcept { *this = static_cast<Request&&>(other); }
  Request& operator=(Request&& other) noexcept;
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request();
  void Wait();

 private:
  Communicator* communicator_ = nullptr;
  int64_t ticket_ = -1;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // One direction of an exchange with one peer: a view of host memory, any dtype. Communicators
  // beside a device (core/comm/staged.h, core/cuda/nccl.h) also take views of its memory, in
  // messages and all-gathers.
  struct Message {
    int peer = 0;
    Tensor elements;
  };
  // Starts any number of messages. Between two ranks the k-th sent is the k-th received, of equal
  // dtype and element count (else the job ends); messages to oneself are copied. Empty ones are
  // left out on both sides. Sent memory must not change and received memory not be read before
  // Wait(). All ranks of the group that have a part in it call in the same order.
  Request StartExchange(std::span<const Message> sends, std::span<const Message> receives,
                        Traffic kind);
  void Exchange(std::span<const Message> sends, std::span<const Message> receives, Traffic kind) {
    StartExchange(sends, receives, kind).Wait();
  }
  // all: [size, ...] of equal parts in rank order; `mine` may lie in its place in `all`.
  Request StartAllGather(const Tensor& mine, const Tensor& all, Traffic kind);
  void AllGather(const Tensor& mine, const Tensor& all, Traffic kind) {
    StartAllGather(mine, all, kind).Wait();
  }

  // Element-wise over ranks, in place, the same bits on every rank: values are gathered and folded
  // in the order of ranks. The maximum is NaN where a rank's value is.
  virtual void AllReduceSum(std::span<double> values, Traffic kind);
  virtual void AllReduceSum(std::span<int64_t> values, Traffic kind);
  virtual void AllReduceMax(std::span<double> values, Traffic kind);
  // Logical or of a flag: all ranks decide together (stop, skip, save).
  bool Any(bool flag);
  // `elements` of rank `root` to all.
  virtual void Broadcast(const Tensor& elements, int root, Traffic kind);
  std::string BroadcastText(absl::string_view text, int root);
  virtual void Barrier() = 0;

  // Ranks of equal `color` form a group, in the order of their ranks here. Collective.
  virtual std::unique_ptr<Communicator> Divide(int color) = 0;
  // Ends the processes of all ranks at once, with exit code `code`.
  [[noreturn]] virtual void Abort(int code) = 0;

  // Bytes that this rank has sent to others so far, by kind; a blocking reduction counts as an
  // all-gather of its values.
  const std::array<int64_t, kTrafficKinds>& bytes_sent() const { return bytes_sent_; }

 protected:
  friend class Request;
  // Of messages to others only, none empty; the spans need not outlive the call. Sizes above 2^31
  // elements are the implementation's business.
  virtual int64_t Start(std::span<const Message> sends, std::span<const Message> receives) = 0;
  virtual void Finish(int64_t ticket) = 0;
  // The all-gather of a blocking reduction: few elements, counted already.
  virtual void GatherNow(const Tensor& mine, const Tensor& all);
  // An all-gather of parts that are not empty, counted already.
  virtual Request StartGather(const Tensor& mine, const Tensor& all);
  // A message to oneself, between different addresses: done, or put in order with ops, at once.
  virtual void CopyOwn(const Tensor& from, const Tensor& to);
  void CountSent(int64_t bytes, Traffic kind) { bytes_sent_[static_cast<size_t>(kind)] += bytes; }

 private:
  template <class T, class Fold>
  void GatherAndFold(std::span<T> values, std::vector<T>& all, Traffic kind, const Fold& fold);

  std::array<int64_t, kTrafficKinds> bytes_sent_{};
  // Reused between calls, so that a step allocates nothing once they have grown.
  std::vector<Message> sends_, receives_;
  std::vector<double> doubles_;
  std::vector<int64_t> integers_;
};

// The communicator of a run of one process.
std::unique_ptr<Communicator> OneRank();
// A rank of a group that does not exist: has a place and a size, and aborts when it is used. For
// components in a dry Memory (`overtok plan`). Of a group of one: OneRank().
std::unique_ptr<Communicator> PlannedRank(int rank, int size);

}  // namespace overtok

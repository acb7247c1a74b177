// Notices lost peers, also while nobody on the host can: a thread looks at the call that is being
// made, at the transfers in flight and at NCCL's asynchronous errors, ten times a second. What it
// finds, and every call of NCCL that fails, ends the process with the reason: NCCL's communicators
// are aborted, which frees the device from waiting, nothing is waited for, and the launcher ends
// the other ranks. Calls block (NCCL's other way starts a thread for each): it is this thread that
// does not.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/comm/communicator.h"
#include "core/cuda/nccl_api.h"
#include "core/cuda/nccl_streams.h"

namespace overtok {

// How long to wait for peers before they count as lost.
struct NcclLimits {
  // For one call on the host: to make or to end a group, to start a transfer, which connects to a
  // peer the first time. All ranks come to these at about the same time.
  std::chrono::milliseconds call = std::chrono::minutes(10);
  // Without a transfer of this rank completing while one is in flight. A peer may be busy with
  // things of its own meanwhile (writing a checkpoint), and lost ones are mostly noticed by NCCL or
  // the launcher at once.
  std::chrono::milliseconds transfer = std::chrono::minutes(30);
  // For the aborts on the way out.
  std::chrono::milliseconds abort = std::chrono::seconds(5);
};

// A transfer in flight, in what an error needs to say.
struct NcclTransfer {
  bool gather = false;
  int64_t number = 0;  // among the transfers of its group, from 0
  int rank = 0, size = 1;
  int first_peer = 0;
  int64_t messages = 0, bytes = 0;
};

class NcclWatch {
 public:
  // All must outlive the watch. Made by the thread that will start transfers.
  NcclWatch(const NcclApi& api, NcclStreams* streams, Communicator* world,
            const NcclLimits& limits);
  ~NcclWatch();
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Groups that are looked at, and aborted in the end.
  void Add(ncclComm_t comm);
  void Remove(ncclComm_t comm);
  // A transfer whose end is at a mark; the mark is released once it was reached and let go.
  void Await(int64_t mark, const NcclTransfer& transfer);
  void LetGo(int64_t mark);
  // Waits until no transfer is in flight and what was let go is released.
  void Drain();

  // Runs call(), a call of NCCL (or several of one NCCL group), unless the process is ending; ends
  // it where the call fails, or takes too long. comm: whose last error tells more; null: nobody's.
  template <class Call>
  void Do(const char* what, ncclComm_t comm, const Call& call) {
    ncclResult_t result = ncclSuccess;
    {
      const std::lock_guard<std::mutex> lock(calls_);
      SetCall(what);
      if (!ending_) result = call();
      SetCall(nullptr);
    }
    if (ending_) End("");
    if (result != ncclSuccess) End(absl::StrCat(what, " failed: ", TextOf(result, comm)));
  }

  // Ends this process with the reason; from any thread. The first to call says its reason.
  [[noreturn]] void End(const std::string& reason);
  // Aborts all groups, in bounded time; no call is made after. False: somebody did already.
  bool AbortAll();

 private:
  using Clock = std::chrono::steady_clock;
  struct Awaited {
    int64_t mark = -1;
    NcclTransfer transfer;
    Clock::time_point started;
    bool reached = false, let_go = false;
  };
  void SetCall(const char* what);
  void Run();
  // One look; empty, or the reason to end.
  std::string Look();
  std::string TextOf(ncclResult_t result, ncclComm_t comm) const;

  const NcclApi api_;
  NcclStreams* streams_;
  Communicator* world_;
  NcclLimits limits_;
  std::thread::id owner_;
  std::atomic<bool> ending_{false};
  std::mutex calls_;  // held during calls that may not come after an abort
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  const char* call_ = nullptr;  // that is being made
  Clock::time_point call_started_;
  std::vector<ncclComm_t> comms_;
  std::vector<Awaited> awaited_;  // in the order of the communication stream
  Clock::time_point progress_;    // when a transfer was last seen to have ended
  std::thread thread_;
};

}  // namespace overtok

#include "core/cuda/nccl_watch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace overtok {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);
// Between two questions whether something is over that is about to be.
constexpr auto kPoll = std::chrono::microseconds(100);

std::string Seconds(std::chrono::milliseconds limit) {
  return absl::StrCat(static_cast<double>(limit.count()) / 1000, " s");
}

std::string Describe(const NcclTransfer& transfer) {
  std::string text =
      transfer.gather ? absl::StrCat("all-gather ", transfer.number)
                      : absl::StrCat("exchange ", transfer.number, " (", transfer.messages,
                                     " messages, the first with rank ", transfer.first_peer, ")");
  return absl::StrCat(text, " of ", transfer.bytes, " bytes, as rank ", transfer.rank,
                      " of a group of ", transfer.size);
}

}  // namespace

NcclWatch::NcclWatch(const NcclApi& api, NcclStreams* streams, Communicator* world,
                     const NcclLimits& limits)
    : api_(api),
      streams_(streams),
      world_(world),
      limits_(limits),
      owner_(std::this_thread::get_id()),
      progress_(Clock::now()) {
  thread_ = std::thread([this] { Run(); });
}

NcclWatch::~NcclWatch() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void NcclWatch::Add(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(mutex_);
  comms_.push_back(comm);
}

void NcclWatch::Remove(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(mutex_);
  comms_.erase(std::find(comms_.begin(), comms_.end(), comm));
}

void NcclWatch::Await(int64_t mark, const NcclTransfer& transfer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  awaited_.push_back({mark, transfer, Clock::now(), false, false});
}

void NcclWatch::LetGo(int64_t mark) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(awaited_.rbegin(), awaited_.rend(),
                                  [mark](const Awaited& awaited) { return awaited.mark == mark; });
  OT_CHECK(found != awaited_.rend() && !found->let_go);
  found->let_go = true;
}

void NcclWatch::Drain() {
  const auto holds = [](const Awaited& awaited) { return !awaited.reached || awaited.let_go; };
  std::unique_lock<std::mutex> lock(mutex_);
  while (std::any_of(awaited_.begin(), awaited_.end(), holds)) {
    lock.unlock();
    const std::string reason = Look();
    if (!reason.empty()) End(reason);
    std::this_thread::sleep_for(kPoll);
    lock.lock();
  }
}

void NcclWatch::SetCall(const char* what) {
  const std::lock_guard<std::mutex> lock(mutex_);
  call_ = what;
  call_started_ = Clock::now();
}

std::string NcclWatch::TextOf(ncclResult_t result, ncclComm_t comm) const {
  std::string text = api_.GetErrorString(result);
  const char* more = comm == nullptr ? nullptr : api_.GetLastError(comm);
  if (more != nullptr && *more != '\0') absl::StrAppend(&text, " (", more, ")");
  return text;
}

void NcclWatch::Run() {
  streams_->UseOnThisThread();
  std::unique_lock<std::mutex> lock(mutex_);
  while (!done_) {
    lock.unlock();
    const std::string reason = ending_ ? std::string() : Look();
    if (!reason.empty()) End(reason);
    lock.lock();
    // The system clock, whose wait every thread sanitizer knows.
    changed_.wait_until(lock, std::chrono::system_clock::now() + kLook);
  }
}

std::string NcclWatch::Look() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (call_ != nullptr && Clock::now() - call_started_ > limits_.call) {
    return absl::StrCat("a peer has not answered ", call_, " for ", Seconds(limits_.call));
  }
  for (const ncclComm_t comm : comms_) {
    ncclResult_t error = ncclSuccess;
    if (api_.CommGetAsyncError(comm, &error) != ncclSuccess) error = ncclInternalError;
    if (error != ncclSuccess && error != ncclInProgress) {
      return absl::StrCat("NCCL has lost a peer or failed: ", TextOf(error, comm));
    }
  }
  for (Awaited& awaited : awaited_) {
    if (awaited.reached) continue;
    const absl::StatusOr<bool> reached = streams_->Reached(awaited.mark);
    if (!reached.ok()) return std::string(reached.status().message());
    if (!*reached) {
      if (Clock::now() - std::max(progress_, awaited.started) > limits_.transfer) {
        return absl::StrCat("a peer has not taken its part for ", Seconds(limits_.transfer), " in ",
                            Describe(awaited.transfer));
      }
      break;
    }
    awaited.reached = true;
    progress_ = Clock::now();
  }
  std::erase_if(awaited_, [this](const Awaited& awaited) {
    if (awaited.reached && awaited.let_go) streams_->Release(awaited.mark);
    return awaited.reached && awaited.let_go;
  });
  return std::string();
}

bool NcclWatch::AbortAll() {
  if (ending_.exchange(true)) return false;
  // Whoever is inside a call is given a moment to leave it; what hangs there is left behind.
  const auto deadline = Clock::now() + limits_.abort;
  const auto lock_by = [deadline](std::mutex& mutex) {
    std::unique_lock<std::mutex> lock(mutex, std::defer_lock);
    while (!lock.try_lock() && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
    return lock;
  };
  const std::unique_lock<std::mutex> calls = lock_by(calls_);
  const std::unique_lock<std::mutex> lock = lock_by(mutex_);
  // An abort may hang like anything else, so another thread does it. What it needs lives on.
  struct Progress {
    std::vector<ncclComm_t> comms;
    std::atomic<bool> done{false};
  };
  const auto progress = std::make_shared<Progress>();
  if (lock.owns_lock()) progress->comms = comms_;
  std::thread([progress, abort = api_.CommAbort] {
    for (const ncclComm_t comm : progress->comms) abort(comm);
    progress->done = true;
  }).detach();
  while (!progress->done && Clock::now() < deadline) std::this_thread::sleep_for(kPoll);
  return true;
}

void NcclWatch::End(const std::string& reason) {
  if (AbortAll()) {
    std::fprintf(stderr, "overtok: rank %d of %d: %s; ending all ranks\n", world_->rank(),
                 world_->size(), reason.c_str());
    std::fflush(nullptr);
    // MPI belongs to one thread; a process that just ends is enough for launchers.
    if (std::this_thread::get_id() == owner_) world_->Abort(1);
    std::_Exit(1);
  }
  // Another thread is on its way out.
  while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
}

}  // namespace overtok

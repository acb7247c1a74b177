// One lock for everything: a handful of ranks and small messages. Whoever waits polls and carries
// the transfers of all streams on.
#include "tests/core/cuda/nccl_stand_in.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "core/check.h"
#include "core/cuda/emulation/device_memory.h"
#include "core/cuda/emulation/queues.h"

namespace {
struct Clique;
}

// NCCL's header declares it.
struct ncclComm {
  Clique* clique = nullptr;
  int rank = 0;
  bool aborted = false, finalized = false;
  ncclResult_t error = ncclSuccess;
  std::string text;
  std::map<int, int64_t> sent, received;  // messages so far, by peer
  int64_t gathered = 0;
};

namespace {

using overtok::testing::NcclFault;

// The ranks that share an id.
struct Clique {
  int size = 0;
  std::map<int, ncclComm*> ranks;
};

struct Operation {
  enum Kind { kSend, kReceive, kGather, kNever } kind = kNever;
  ncclComm* comm = nullptr;
  const void* from = nullptr;
  void* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclUint8;
  int peer = 0;
  int64_t number = 0;  // among the messages of the pair, or the gathers of the communicator
  bool done = false;
};

struct Stream {
  std::deque<std::vector<Operation>> groups;
  int64_t given = 0, done = 0;
};

struct Global {
  std::mutex mutex;
  std::map<std::string, Clique> cliques;  // by id
  std::set<Stream*> streams;
  std::vector<std::unique_ptr<ncclComm>> comms;
  overtok::testing::StandInFacts facts;
  int64_t next_id = 0;
};
Global& G() {
  static Global global;
  return global;
}

struct ThisThread {
  int depth = 0;
  std::map<Stream*, std::vector<Operation>> group;
  NcclFault fault = NcclFault::kNone;
  int calls_to_fault = 0;
};
thread_local ThisThread this_thread;

[[noreturn]] void Misuse(const std::string& what) {
  std::fprintf(stderr, "stand-in of NCCL: %s\n", what.c_str());
  std::fflush(nullptr);
  std::abort();
}

NcclFault NextFault() {
  if (this_thread.fault == NcclFault::kNone || this_thread.calls_to_fault-- > 0) {
    return NcclFault::kNone;
  }
  return std::exchange(this_thread.fault, NcclFault::kNone);
}

size_t WidthOf(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      Misuse(absl::StrCat("type ", static_cast<int>(type)));
  }
}

void CheckUsable(const ncclComm* comm, const char* call) {
  if (comm == nullptr) Misuse(absl::StrCat(call, " without a communicator"));
  if (comm->aborted) Misuse(absl::StrCat(call, " of a communicator that was aborted or destroyed"));
}

void Mismatch(ncclComm* a, ncclComm* b, const std::string& text) {
  for (ncclComm* comm : {a, b}) {
    comm->error = ncclInvalidUsage;
    comm->text = text;
  }
}

// The operation of `comm` in progress that answers, or null.
template <class Answers>
Operation* Find(const ncclComm* comm, const Answers& answers) {
  for (Stream* stream : G().streams) {
    if (stream->groups.empty()) continue;
    for (Operation& operation : stream->groups.front()) {
      if (operation.comm == comm && !operation.done && answers(operation)) return &operation;
    }
  }
  return nullptr;
}

bool TrySend(Operation& send) {
  const auto& ranks = send.comm->clique->ranks;
  const auto peer = ranks.find(send.peer);
  if (peer == ranks.end()) return false;
  Operation* receive = Find(peer->second, [&](const Operation& other) {
    return other.kind == Operation::kReceive && other.peer == send.comm->rank &&
           other.number == send.number;
  });
  if (receive == nullptr) return false;
  if (receive->type != send.type || receive->count != send.count) {
    Mismatch(send.comm, receive->comm,
             absl::StrCat("message ", send.number, " from rank ", send.comm->rank, " to rank ",
                          send.peer, " has ", send.count, " elements of type ", int{send.type},
                          ", expected ", receive->count, " of type ", int{receive->type}));
    return false;
  }
  std::memcpy(receive->to, send.from, send.count * WidthOf(send.type));
  send.done = receive->done = true;
  ++G().facts.messages;
  return true;
}

bool TryGather(Operation& mine) {
  const Clique& clique = *mine.comm->clique;
  std::vector<Operation*> all;
  for (const auto& [rank, comm] : clique.ranks) {
    Operation* other = Find(comm, [&](const Operation& operation) {
      return operation.kind == Operation::kGather && operation.number == mine.number;
    });
    if (other == nullptr) return false;
    if (other->type != mine.type || other->count != mine.count) {
      Mismatch(mine.comm, comm,
               absl::StrCat("all-gather ", mine.number, " has ", mine.count, " elements on rank ",
                            mine.comm->rank, " and ", other->count, " on rank ", rank));
      return false;
    }
    all.push_back(other);
  }
  const size_t bytes = mine.count * WidthOf(mine.type);
  for (const Operation* to : all) {
    for (const Operation* from : all) {
      char* place = static_cast<char*>(to->to) + static_cast<size_t>(from->comm->rank) * bytes;
      if (place != from->from) std::memcpy(place, from->from, bytes);
    }
  }
  for (Operation* operation : all) operation->done = true;
  G().facts.gathers += static_cast<int>(all.size());
  return true;
}

// Carries on what can be, under the lock.
void Progress() {
  const overtok::emulation::DeviceAccess access;
  for (bool moved = true; moved;) {
    moved = false;
    for (Stream* stream : G().streams) {
      if (stream->groups.empty()) continue;
      bool all = true;
      for (Operation& operation : stream->groups.front()) {
        if (operation.done) continue;
        if (operation.kind == Operation::kSend) moved |= TrySend(operation);
        if (operation.kind == Operation::kGather) moved |= TryGather(operation);
        all &= operation.done;
      }
      if (!all) continue;
      stream->groups.pop_front();
      ++stream->done;
      moved = true;
    }
  }
}

void Put(Stream* stream, std::vector<Operation> group) {
  const overtok::emulation::DeviceAccess access;
  for (const Operation& operation : group) {
    const size_t bytes = operation.count * WidthOf(operation.type);
    if (operation.kind == Operation::kReceive) std::memset(operation.to, 0xff, bytes);
    if (operation.kind != Operation::kGather) continue;
    const auto size = static_cast<size_t>(operation.comm->clique->size);
    for (size_t r = 0; r < size; ++r) {
      char* place = static_cast<char*>(operation.to) + r * bytes;
      if (place != operation.from) std::memset(place, 0xff, bytes);
    }
  }
  stream->groups.push_back(std::move(group));
  ++stream->given;
}

ncclResult_t Add(Operation operation, cudaStream_t to) {
  const NcclFault fault = NextFault();
  const std::lock_guard<std::mutex> lock(G().mutex);
  CheckUsable(operation.comm, "a transfer");
  if (operation.comm->finalized) Misuse("a transfer of a communicator that was finalized");
  operation.number = operation.kind == Operation::kSend ? operation.comm->sent[operation.peer]++
                     : operation.kind == Operation::kReceive
                         ? operation.comm->received[operation.peer]++
                         : operation.comm->gathered++;
  if (fault == NcclFault::kError) return ncclSystemError;
  if (fault != NcclFault::kNone) operation.kind = Operation::kNever;
  if (fault == NcclFault::kDeath) {
    for (const auto& [rank, comm] : operation.comm->clique->ranks) {
      if (comm == operation.comm) continue;
      comm->error = ncclRemoteError;
      comm->text = absl::StrCat("rank ", operation.comm->rank, " closed its connection");
    }
  }
  auto* stream = reinterpret_cast<Stream*>(to);
  if (this_thread.depth > 0) {
    this_thread.group[stream].push_back(operation);
  } else {
    Put(stream, {operation});
  }
  return ncclSuccess;
}

ncclResult_t GetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t GetUniqueId(ncclUniqueId* id) {
  const std::lock_guard<std::mutex> lock(G().mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  std::snprintf(id->internal, sizeof id->internal, "id %d", static_cast<int>(G().next_id++));
  G().facts.ids.emplace_back(id->internal);
  return ncclSuccess;
}

const char* GetErrorString(ncclResult_t result) {
  return result == ncclSystemError    ? "system error"
         : result == ncclRemoteError  ? "remote error"
         : result == ncclInvalidUsage ? "invalid usage"
                                      : "error";
}

const char* GetLastError(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(G().mutex);
  return comm->text.c_str();
}

ncclResult_t CommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                ncclConfig_t* config) {
  const NcclFault fault = NextFault();
  if (config->blocking != 1) Misuse("communicators of this table block");
  if (fault == NcclFault::kError) return ncclSystemError;
  while (fault != NcclFault::kNone) std::this_thread::sleep_for(std::chrono::seconds(1));
  Clique* clique = nullptr;
  {
    const std::lock_guard<std::mutex> lock(G().mutex);
    bool drawn = false;
    for (const std::string& known : G().facts.ids) drawn |= known == id.internal;
    if (!drawn) Misuse(absl::StrCat("id \"", id.internal, "\" was never drawn"));
    clique = &G().cliques[id.internal];
    if (clique->size != 0 && clique->size != size) Misuse("ranks of an id differ in their number");
    clique->size = size;
    if (rank < 0 || rank >= size) Misuse(absl::StrCat("rank ", rank, " of ", size));
    G().comms.push_back(std::make_unique<ncclComm>());
    *comm = G().comms.back().get();
    (*comm)->clique = clique;
    (*comm)->rank = rank;
    if (!clique->ranks.emplace(rank, *comm).second) {
      Misuse(absl::StrCat("id \"", id.internal, "\" is used twice by rank ", rank));
    }
    ++G().facts.live;
  }
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(G().mutex);
      if (static_cast<int>(clique->ranks.size()) == size) return ncclSuccess;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

ncclResult_t CommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard<std::mutex> lock(G().mutex);
  CheckUsable(comm, "ncclCommGetAsyncError");
  Progress();
  *error = comm->error;
  return ncclSuccess;
}

ncclResult_t CommFinalize(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(G().mutex);
  CheckUsable(comm, "ncclCommFinalize");
  if (this_thread.depth != 0) Misuse("a group is not closed");
  comm->finalized = true;
  return ncclSuccess;
}

ncclResult_t CommDestroy(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(G().mutex);
  CheckUsable(comm, "ncclCommDestroy");
  if (!comm->finalized) Misuse("a communicator is destroyed before it was finalized");
  comm->aborted = true;
  --G().facts.live;
  return ncclSuccess;
}

ncclResult_t CommAbort(ncclComm_t comm) {
  const std::lock_guard<std::mutex> lock(G().mutex);
  CheckUsable(comm, "ncclCommAbort");
  comm->aborted = true;
  --G().facts.live;
  std::fprintf(stderr, "stand-in of NCCL: aborted\n");
  return ncclSuccess;
}

ncclResult_t GroupStart() {
  ++this_thread.depth;
  return ncclSuccess;
}

ncclResult_t GroupEnd() {
  if (this_thread.depth == 0) Misuse("ncclGroupEnd of no group");
  if (--this_thread.depth > 0) return ncclSuccess;
  const std::lock_guard<std::mutex> lock(G().mutex);
  for (auto& [stream, group] : this_thread.group) Put(stream, std::move(group));
  this_thread.group.clear();
  return ncclSuccess;
}

ncclResult_t Send(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                  cudaStream_t stream) {
  return Add({Operation::kSend, comm, from, nullptr, count, type, peer}, stream);
}

ncclResult_t Receive(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
  return Add({Operation::kReceive, comm, nullptr, to, count, type, peer}, stream);
}

ncclResult_t AllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                       ncclComm_t comm, cudaStream_t stream) {
  return Add({Operation::kGather, comm, from, to, count, type}, stream);
}

// A mark is the number of groups that a stream was given before it.
class Streams final : public overtok::NcclStreams {
 public:
  Streams() {
    const std::lock_guard<std::mutex> lock(G().mutex);
    G().streams.insert(&stream_);
  }
  ~Streams() override {
    const std::lock_guard<std::mutex> lock(G().mutex);
    if (stream_.done != stream_.given) Misuse("a stream ends with transfers in flight");
    if (!marks_.empty()) Misuse("marks were not released");
    G().streams.erase(&stream_);
  }
  void* communication() const override { return const_cast<Stream*>(&stream_); }
  void FollowCompute() override { overtok::emulation::RunMain(); }
  int64_t Mark() override {
    const std::lock_guard<std::mutex> lock(G().mutex);
    marks_[next_] = stream_.given;
    return next_++;
  }
  void ComputeFollows(int64_t mark) override {
    while (!*Reached(mark)) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  absl::StatusOr<bool> Reached(int64_t mark) override {
    const std::lock_guard<std::mutex> lock(G().mutex);
    if (!marks_.contains(mark)) Misuse("a mark is used after its release");
    Progress();
    return stream_.done >= marks_.at(mark);
  }
  void Release(int64_t mark) override {
    const std::lock_guard<std::mutex> lock(G().mutex);
    marks_.erase(mark);
  }
  void Copy(void* to, const void* from, int64_t bytes) override {
    FollowCompute();
    const overtok::emulation::DeviceAccess access;
    std::memmove(to, from, static_cast<size_t>(bytes));
  }
  void UseOnThisThread() override {}

 private:
  Stream stream_;
  int64_t next_ = 0;
  std::map<int64_t, int64_t> marks_;
};

}  // namespace

namespace overtok::testing {

NcclApi StandInApi() {
  NcclApi api;
  api.GetVersion = GetVersion;
  api.GetUniqueId = GetUniqueId;
  api.GetErrorString = GetErrorString;
  api.GetLastError = GetLastError;
  api.CommInitRankConfig = CommInitRankConfig;
  api.CommGetAsyncError = CommGetAsyncError;
  api.CommFinalize = CommFinalize;
  api.CommDestroy = CommDestroy;
  api.CommAbort = CommAbort;
  api.GroupStart = GroupStart;
  api.GroupEnd = GroupEnd;
  api.Send = Send;
  api.Recv = Receive;
  api.AllGather = AllGather;
  return api;
}

std::unique_ptr<NcclStreams> StandInStreams() { return std::make_unique<Streams>(); }

void PlanNcclFault(NcclFault fault, int nth) {
  this_thread.fault = fault;
  this_thread.calls_to_fault = nth;
}

StandInFacts NcclFacts() {
  const std::lock_guard<std::mutex> lock(G().mutex);
  return G().facts;
}

void ResetNcclFacts() {
  const std::lock_guard<std::mutex> lock(G().mutex);
  OT_CHECK_EQ(G().facts.live, 0);
  G().facts = {};
  G().cliques.clear();
  G().comms.clear();
}

}  // namespace overtok::testing

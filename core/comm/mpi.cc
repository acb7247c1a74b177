// Every message is a chain of typed sends with one tag. MPI keeps the order of messages between two
// ranks, so the k-th sent is the k-th received; the tag, made of k and the dtype, is not used to
// match but to notice that both sides disagree. A step allocates nothing once as many exchanges
// have been in flight as ever will be.
#include "core/comm/mpi.h"

// The C++ bindings that MPI dropped long ago.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace overtok {
namespace {

constexpr int kDTypes = 9;
// Tags are at most 32767 in any MPI.
constexpr int64_t kTagCycle = 2048;

MPI_Datatype TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kBF16:
    case DType::kU16:
      return MPI_UINT16_T;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kU32:
      return MPI_UINT32_T;
    case DType::kU8:
      return MPI_UINT8_T;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kU64:
      return MPI_UINT64_T;
  }
  OT_CHECK(false) << "dtype " << static_cast<int>(dtype);
  return MPI_DATATYPE_NULL;
}

int TagOf(int64_t number, DType dtype) {
  return static_cast<int>(number % kTagCycle) * kDTypes + static_cast<int>(dtype);
}

std::string ErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<size_t>(std::max(length, 0)));
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, bool is_world, int64_t piece_bytes);
  ~MpiCommunicator() override;
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void Broadcast(const Tensor& elements, int root, Traffic kind) override;
  void Barrier() override { Check(MPI_Barrier(comm_), "MPI_Barrier"); }
  std::unique_ptr<Communicator> Divide(int color) override;
  [[noreturn]] void Abort(int code) override;

 protected:
  int64_t Start(std::span<const Message> sends, std::span<const Message> receives) override;
  void Finish(int64_t ticket) override;
  void GatherNow(const Tensor& mine, const Tensor& all) override;

 private:
  // What a receive has to look like when it is complete.
  struct Expected {
    int peer = 0, tag = 0, count = 0;
    DType dtype = DType::kF32;
  };
  // An exchange in flight; receives come first among the requests.
  struct Pending {
    bool used = false;
    std::vector<MPI_Request> requests;
    std::vector<Expected> expected;
  };

  // Calls visit(pointer, count) for each piece of the elements.
  template <class Visit>
  void ForEachPiece(const Tensor& elements, const Visit& visit) const;
  void Check(int code, const char* what);
  void CheckReceived(const Expected& expected, const MPI_Status& status, int code);
  [[noreturn]] void Fail(const std::string& message);

  MPI_Comm comm_;
  bool is_world_;
  int64_t piece_bytes_;
  int rank_ = 0, size_ = 1;
  std::vector<int64_t> sent_, received_;  // messages so far, by peer
  std::vector<Pending> pending_;          // by ticket
};

MpiCommunicator::MpiCommunicator(MPI_Comm comm, bool is_world, int64_t piece_bytes)
    : comm_(comm), is_world_(is_world), piece_bytes_(piece_bytes) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  Check(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  Check(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  sent_.resize(static_cast<size_t>(size_));
  received_.resize(static_cast<size_t>(size_));
}

MpiCommunicator::~MpiCommunicator() {
  for (const Pending& pending : pending_) {
    OT_CHECK(!pending.used) << "a group ends with collectives in flight";
  }
  if (is_world_) {
    MPI_Finalize();
  } else {
    MPI_Comm_free(&comm_);
  }
}

template <class Visit>
void MpiCommunicator::ForEachPiece(const Tensor& elements, const Visit& visit) const {
  const int64_t width = SizeOf(elements.dtype()), most = std::max<int64_t>(piece_bytes_ / width, 1);
  auto* bytes = static_cast<char*>(elements.raw());
  for (int64_t at = 0; at < elements.elements(); at += most) {
    visit(bytes + at * width, static_cast<int>(std::min(most, elements.elements() - at)));
  }
}

int64_t MpiCommunicator::Start(std::span<const Message> sends, std::span<const Message> receives) {
  int is_main = 0;
  MPI_Is_thread_main(&is_main);
  OT_CHECK(is_main != 0) << "collectives belong to the thread that joined the world";
  size_t ticket = 0;
  while (ticket < pending_.size() && pending_[ticket].used) ++ticket;
  if (ticket == pending_.size()) pending_.emplace_back();
  Pending& pending = pending_[ticket];
  pending.used = true;
  pending.requests.clear();
  pending.expected.clear();
  for (const Message& receive : receives) {
    const DType dtype = receive.elements.dtype();
    const int tag = TagOf(received_[static_cast<size_t>(receive.peer)]++, dtype);
    ForEachPiece(receive.elements, [&](char* piece, int count) {
      pending.expected.push_back({receive.peer, tag, count, dtype});
      Check(MPI_Irecv(piece, count, TypeOf(dtype), receive.peer, MPI_ANY_TAG, comm_,
                      &pending.requests.emplace_back()),
            "MPI_Irecv");
    });
  }
  for (const Message& send : sends) {
    const DType dtype = send.elements.dtype();
    const int tag = TagOf(sent_[static_cast<size_t>(send.peer)]++, dtype);
    ForEachPiece(send.elements, [&](const char* piece, int count) {
      Check(MPI_Isend(piece, count, TypeOf(dtype), send.peer, tag, comm_,
                      &pending.requests.emplace_back()),
            "MPI_Isend");
    });
  }
  // MPI only works while it is called: an earlier exchange goes on here, so that a caller who
  // computes between its exchanges finds them done.
  int arrived = 0;
  Check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &arrived, MPI_STATUS_IGNORE), "MPI_Iprobe");
  return static_cast<int64_t>(ticket);
}

void MpiCommunicator::Finish(int64_t ticket) {
  Pending& pending = pending_[static_cast<size_t>(ticket)];
  OT_CHECK(pending.used) << "no collective of ticket " << ticket;
  // One by one: Open MPI 4.1 does not return from MPI_Waitall when a message is too long for its
  // receiver. All are under way whichever is waited for.
  for (size_t i = 0; i < pending.requests.size(); ++i) {
    MPI_Status status;
    const int code = MPI_Wait(&pending.requests[i], &status);
    if (i < pending.expected.size()) {
      CheckReceived(pending.expected[i], status, code);
    } else {
      Check(code, "MPI_Wait");
    }
  }
  pending.used = false;
}

void MpiCommunicator::CheckReceived(const Expected& expected, const MPI_Status& status, int code) {
  int count = 0;
  if (code == MPI_SUCCESS) MPI_Get_count(&status, TypeOf(expected.dtype), &count);
  if (code == MPI_SUCCESS && count == expected.count && status.MPI_TAG == expected.tag) return;
  std::string found;
  if (code != MPI_SUCCESS) {
    found = ErrorText(code);
  } else if (status.MPI_TAG != expected.tag) {
    found = absl::StrCat("got message ", status.MPI_TAG / kDTypes, " of ",
                         NameOf(static_cast<DType>(status.MPI_TAG % kDTypes)));
  } else {
    found = absl::StrCat("got ", count, " elements");
  }
  Fail(absl::StrCat("message ", expected.tag / kDTypes, " from rank ", expected.peer,
                    " does not match: expected ", expected.count, " elements of ",
                    NameOf(expected.dtype), ", ", found));
}

void MpiCommunicator::GatherNow(const Tensor& mine, const Tensor& all) {
  const MPI_Datatype type = TypeOf(mine.dtype());
  OT_CHECK_LE(mine.bytes(), kMpiPieceBytes);
  const int count = static_cast<int>(mine.elements());
  Check(MPI_Allgather(mine.raw(), count, type, all.raw(), count, type, comm_), "MPI_Allgather");
}

void MpiCommunicator::Broadcast(const Tensor& elements, int root, Traffic kind) {
  OT_CHECK(root >= 0 && root < size_) << "rank " << root << " of " << size_;
  if (rank_ == root) CountSent(elements.bytes() * (size_ - 1), kind);
  ForEachPiece(elements, [&](char* piece, int count) {
    Check(MPI_Bcast(piece, count, TypeOf(elements.dtype()), root, comm_), "MPI_Bcast");
  });
}

std::unique_ptr<Communicator> MpiCommunicator::Divide(int color) {
  // MPI wants colors of 0 and above, and few promises hold for large ones: ranks agree on numbers.
  std::vector<int64_t> colors(static_cast<size_t>(size_));
  int64_t mine = color;
  GatherNow(Tensor(&mine, {1}), Tensor(colors.data(), {size_}));
  const auto first = std::find(colors.begin(), colors.end(), mine) - colors.begin();
  MPI_Comm part = MPI_COMM_NULL;
  Check(MPI_Comm_split(comm_, static_cast<int>(first), rank_, &part), "MPI_Comm_split");
  return std::make_unique<MpiCommunicator>(part, false, piece_bytes_);
}

void MpiCommunicator::Abort(int code) {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, code);
  std::_Exit(code);
}

void MpiCommunicator::Check(int code, const char* what) {
  if (code != MPI_SUCCESS) Fail(absl::StrCat(what, " failed: ", ErrorText(code)));
}

void MpiCommunicator::Fail(const std::string& message) {
  int world_rank = rank_;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  std::fprintf(stderr, "overtok: rank %d (rank %d of a group of %d): %s; ending all ranks\n",
               world_rank, rank_, size_, message.c_str());
  Abort(1);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> JoinMpi(MpiPlace* place, int64_t piece_bytes) {
  OT_CHECK(piece_bytes > 0 && piece_bytes <= kMpiPieceBytes);
  // A rank that waits polls; between two polls it offers its core to whoever else wants it, or
  // ranks that share cores would keep the working one from its own.
  setenv("OMPI_MCA_mpi_yield_when_idle", "1", /*overwrite=*/0);
  int provided = MPI_THREAD_SINGLE;
  // Without a handler of ours MPI ends the process with its own message where it cannot start.
  if (MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
    return absl::InternalError("MPI could not be initialised");
  }
  auto world = std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, true, piece_bytes);
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(library, &length);
  place->library.assign(library, static_cast<size_t>(std::max(length, 0)));
  place->library.resize(std::min(place->library.find_first_of(",\n"), place->library.size()));
  if (provided < MPI_THREAD_FUNNELED) {
    return absl::FailedPreconditionError(
        absl::StrCat(place->library,
                     " does not allow other threads beside the one that calls it; overtok needs "
                     "MPI_THREAD_FUNNELED"));
  }
  MPI_Comm host = MPI_COMM_NULL;
  if (MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host) !=
          MPI_SUCCESS ||
      MPI_Comm_rank(host, &place->local_rank) != MPI_SUCCESS ||
      MPI_Comm_size(host, &place->local_size) != MPI_SUCCESS) {
    return absl::InternalError("MPI does not tell which ranks share a host");
  }
  MPI_Comm_free(&host);
  return world;
}

}  // namespace overtok

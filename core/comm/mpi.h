// Ranks as processes, over MPI. The one place that knows MPI: counts beyond 2^31, element types and
// error codes end here.
#pragma once

#include <memory>
#include <string>

#include "core/comm/communicator.h"
#include "core/status.h"

namespace overtok {

// A message travels in pieces of at most so many bytes.
inline constexpr int64_t kMpiPieceBytes = int64_t{1} << 28;

struct MpiPlace {
  int local_rank = 0, local_size = 1;  // among the processes that share this host's memory
  std::string library;                 // its name and version, one line
};

// Initialises MPI and returns the world; destroying it finalises MPI, which waits for the other
// ranks. Call once, from the thread that will call every collective. Messages that do not match,
// and lost peers, end the job with a message. An error: MPI does not start or lacks thread support.
absl::StatusOr<std::unique_ptr<Communicator>> JoinMpi(MpiPlace* place,
                                                      int64_t piece_bytes = kMpiPieceBytes);

}  // namespace overtok

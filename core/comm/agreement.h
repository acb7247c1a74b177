// Ranks agree before they stop: an error that one rank met becomes every rank's error, with the
// rank it came from, so that nobody waits for a peer that has left.
#pragma once

#include "absl/strings/string_view.h"
#include "core/comm/communicator.h"
#include "core/status.h"

namespace overtok {

// Collective. OK when every rank's status is; else the error of the lowest rank that has one, the
// same on all ranks, marked as agreed. Its message names the rank where not all ranks have it.
absl::Status Agree(Communicator& world, const absl::Status& mine);
// The same of a value that every rank has made itself: `OT_ASSIGN_OR_RETURN(x, Agree(world, F()))`.
template <class T>
absl::StatusOr<T> Agree(Communicator& world, absl::StatusOr<T> mine) {
  OT_RETURN_IF_ERROR(Agree(world, mine.status()));
  return mine;
}
// Whether every rank holds this error, so that each can leave with it (rank 0 prints it).
bool IsAgreed(const absl::Status& status);

// Collective. An error naming `what`, rank 0's value and the first rank whose value differs.
absl::Status CheckSame(Communicator& world, absl::string_view what, absl::string_view value);

}  // namespace overtok

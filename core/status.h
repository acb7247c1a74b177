// Status propagation. A user's mistake becomes an absl::Status whose message names the file, line
// or key, the value, what was expected and what to do; it travels up to the subcommand, which
// prints it and exits non-zero.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

// Abseil of this age has no such macros in its public part.
#define OT_RETURN_IF_ERROR(expression)       \
  do {                                       \
    absl::Status ot_status_ = (expression);  \
    if (!ot_status_.ok()) return ot_status_; \
  } while (false)

#define OT_CONCAT_INNER_(a, b) a##b
#define OT_CONCAT_(a, b) OT_CONCAT_INNER_(a, b)
// OT_ASSIGN_OR_RETURN(auto x, F()): F returns absl::StatusOr<T>.
#define OT_ASSIGN_OR_RETURN(target, expression) \
  OT_ASSIGN_OR_RETURN_IMPL_(OT_CONCAT_(ot_statusor_, __LINE__), target, expression)
#define OT_ASSIGN_OR_RETURN_IMPL_(variable, target, expression) \
  auto variable = (expression);                                 \
  if (!variable.ok()) return std::move(variable).status();      \
  target = std::move(variable).value()

namespace overtok {

// The same status, its marks included, with `context: ` in front of its message; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status result(status.code(), absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&result](absl::string_view type, const absl::Cord& mark) { result.SetPayload(type, mark); });
  return result;
}

}  // namespace overtok

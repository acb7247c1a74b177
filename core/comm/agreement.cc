#include "core/comm/agreement.h"

#include <string>
#include <vector>

#include "absl/strings/cord.h"

namespace overtok {
namespace {

constexpr char kMark[] = "overtok/agreed";

// `value` of every rank, in the order of ranks.
std::vector<int64_t> Gather(Communicator& world, int64_t value) {
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.AllGather(Tensor(&value, {1}), Tensor(all.data(), {world.size()}), Traffic::kControl);
  return all;
}

// The first rank whose value is not 0, or -1.
int First(const std::vector<int64_t>& values) {
  for (size_t r = 0; r < values.size(); ++r) {
    if (values[r] != 0) return static_cast<int>(r);
  }
  return -1;
}

absl::Status Marked(absl::StatusCode code, absl::string_view message) {
  absl::Status status(code, message);
  status.SetPayload(kMark, absl::Cord());
  return status;
}

}  // namespace

absl::Status Agree(Communicator& world, const absl::Status& mine) {
  const std::vector<int64_t> codes = Gather(world, static_cast<int64_t>(mine.code()));
  const int from = First(codes);
  if (from < 0) return absl::OkStatus();
  const std::string message = world.BroadcastText(mine.message(), from);
  const auto code = static_cast<absl::StatusCode>(codes[static_cast<size_t>(from)]);
  // One mistake that all ranks see (a misspelt key) is told as it would be on one rank.
  if (!world.Any(mine.code() != code || mine.message() != message)) return Marked(code, message);
  return Marked(code, absl::StrCat("rank ", from, ": ", message));
}

bool IsAgreed(const absl::Status& status) { return status.GetPayload(kMark).has_value(); }

absl::Status CheckSame(Communicator& world, absl::string_view what, absl::string_view value) {
  const std::string expected = world.BroadcastText(value, 0);
  const int other = First(Gather(world, value != expected ? 1 : 0));
  if (other < 0) return absl::OkStatus();
  const std::string found = world.BroadcastText(value, other);
  return Marked(absl::StatusCode::kFailedPrecondition,
                absl::StrCat(what, " is not the same on all ranks: rank 0 has ", expected,
                             ", rank ", other, " has ", found));
}

}  // namespace overtok

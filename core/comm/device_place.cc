#include "core/comm/device_place.h"

#include <unistd.h>

#include <map>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/comm/agreement.h"

namespace overtok {
namespace {

constexpr char kAdvice[] =
    "start at most one rank per GPU (ntasks-per-node, mpirun's host slots), or look at "
    "CUDA_VISIBLE_DEVICES";

}  // namespace

absl::StatusOr<std::vector<int>> PlaceOnDevices(const std::vector<RankDevices>& ranks,
                                                bool shared) {
  std::vector<int> places;
  // Ranks so far of a host that see the same devices, and who took a device.
  std::map<std::pair<std::string, std::vector<std::string>>, int> seen;
  std::map<std::pair<std::string, std::string>, size_t> taken;
  std::map<std::pair<std::string, std::vector<std::string>>, int> all;
  for (const RankDevices& rank : ranks) ++all[{rank.host, rank.devices}];
  for (size_t r = 0; r < ranks.size(); ++r) {
    const RankDevices& rank = ranks[r];
    const auto count = static_cast<int>(rank.devices.size());
    if (count == 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          "rank ", r, " on ", rank.host,
          " sees no GPU: look at nvidia-smi and CUDA_VISIBLE_DEVICES there, or ask the "
          "scheduler for GPUs (sbatch --gpus-per-node)"));
    }
    const int number = seen[{rank.host, rank.devices}]++;
    if (!shared && number >= count) {
      return absl::FailedPreconditionError(absl::StrCat(
          all[{rank.host, rank.devices}], " ranks on ", rank.host, " for ", count,
          count == 1 ? " GPU" : " GPUs", " (", absl::StrJoin(rank.devices, ", "), "): ", kAdvice));
    }
    const int place = number % count;
    const std::string& device = rank.devices[static_cast<size_t>(place)];
    const auto [owner, is_free] = taken.insert({{rank.host, device}, r});
    if (!shared && !is_free) {
      return absl::FailedPreconditionError(
          absl::StrCat("ranks ", owner->second, " and ", r, " on ", rank.host, " both take GPU ",
                       device, ", because they see different GPUs that overlap: ", kAdvice));
    }
    places.push_back(place);
  }
  return places;
}

absl::StatusOr<int> DeviceOfRank(Communicator& world, const RankDevices& mine, bool shared) {
  std::vector<RankDevices> ranks;
  for (int r = 0; r < world.size(); ++r) {
    const std::string text =
        world.BroadcastText(absl::StrCat(mine.host, "\n", absl::StrJoin(mine.devices, "\n")), r);
    std::vector<std::string> lines = absl::StrSplit(text, '\n');
    RankDevices rank;
    rank.host = lines.front();
    for (size_t i = 1; i < lines.size(); ++i) {
      if (!lines[i].empty()) rank.devices.push_back(lines[i]);
    }
    ranks.push_back(std::move(rank));
  }
  OT_ASSIGN_OR_RETURN(const std::vector<int> places, Agree(world, PlaceOnDevices(ranks, shared)));
  return places[static_cast<size_t>(world.rank())];
}

absl::Status CheckOwnDevices(Communicator& world, absl::string_view host,
                             absl::string_view device) {
  const RankDevices mine{std::string(host), {std::string(device)}};
  return DeviceOfRank(world, mine, /*shared=*/false).status();
}

std::string HostName() {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

}  // namespace overtok

// Which of a host's devices each rank takes: its index is the rank's number among the processes of
// the host that see the same devices, so that it is never the world's rank, and a launcher that
// shows every process one device of its own gets index 0 everywhere.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/comm/communicator.h"
#include "core/status.h"

namespace overtok {

// What a rank sees, in its own order.
struct RankDevices {
  std::string host;
  std::vector<std::string> devices;  // names that are unique on the host (PCI addresses)
};

// By rank, the index among its own devices. Errors, naming host, ranks and devices: a rank that
// sees none; unless `shared`, more ranks than devices, and devices seen by ranks that do not all
// see the same. shared: ranks take the devices in turn, as many as there are.
absl::StatusOr<std::vector<int>> PlaceOnDevices(const std::vector<RankDevices>& ranks, bool shared);

// The same for this rank. Collective; errors are the same on all ranks.
absl::StatusOr<int> DeviceOfRank(Communicator& world, const RankDevices& mine, bool shared);

// Collective: an error, the same on all ranks, where two ranks of a host have the same device.
absl::Status CheckOwnDevices(Communicator& world, absl::string_view host, absl::string_view device);

// This host's name.
std::string HostName();

}  // namespace overtok

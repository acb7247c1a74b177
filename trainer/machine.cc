#include "trainer/machine.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

namespace overtok {
namespace {

// The number behind `key` in a file of "key value" lines.
std::optional<int64_t> Lookup(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    int64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

// The one number in a file; nullopt for a missing file and for "max".
std::optional<int64_t> Number(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// Tightens `memory` by the control group at `group`, whose files are called `limit` and `usage`.
void Tighten(const std::string& group, const std::string& limit, const std::string& usage,
             AvailableMemory* memory) {
  const std::optional<int64_t> most = Number(group + "/" + limit);
  const std::optional<int64_t> used = Number(group + "/" + usage);
  if (!most.has_value() || !used.has_value()) return;
  const int64_t cache = Lookup(group + "/memory.stat", "inactive_file").value_or(0);
  const int64_t free = std::max<int64_t>(0, *most - std::max<int64_t>(0, *used - cache));
  if (memory->bytes < 0 || free < memory->bytes) *memory = {free, group + "/" + limit};
}

}  // namespace

AvailableMemory FindAvailableMemory() {
  AvailableMemory memory;
  if (const std::optional<int64_t> kib = Lookup("/proc/meminfo", "MemAvailable:")) {
    memory = {*kib * 1024, "MemAvailable"};
  }
  // Lines "hierarchy:controllers:path"; inside a container the path may not exist below the mount,
  // whose root is then the container's own group.
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      for (std::string at = path; !at.empty(); at = at.substr(0, at.rfind('/'))) {
        Tighten("/sys/fs/cgroup" + at, "memory.max", "memory.current", &memory);
        if (at == "/") break;
      }
      Tighten("/sys/fs/cgroup", "memory.max", "memory.current", &memory);
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      for (const std::string& group :
           {"/sys/fs/cgroup/memory" + path, std::string("/sys/fs/cgroup/memory")}) {
        Tighten(group, "memory.limit_in_bytes", "memory.usage_in_bytes", &memory);
      }
    }
  }
  return memory;
}

int64_t PeakMemory() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace overtok

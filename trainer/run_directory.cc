#include "trainer/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/io/files.h"
#include "core/io/hash.h"
#include "trainer/metrics.h"

namespace overtok {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kLock[] = "lock";
constexpr int kVersion = 1;

// The processor's name as the kernel tells it; empty where it does not.
std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, 10, "model name") != 0) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? "" : line.substr(colon + 2);
  }
  return "";
}

Json HostFacts() {
  utsname system{};
  uname(&system);
  Json host = {{"name", system.nodename},
               {"system", absl::StrCat(system.sysname, " ", system.release)},
               {"machine", system.machine},
               {"processor", ProcessorName()}};
  // The job that a batch system runs this process in.
  for (const char* name : {"SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT",
                           "SLURM_JOB_NODELIST", "SLURMD_NODENAME"}) {
    if (const char* value = std::getenv(name)) host[name] = value;
  }
  return host;
}

Json Pairs(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json object = Json::object();
  for (const auto& [name, value] : pairs) object[name] = value;
  return object;
}

absl::StatusOr<Json> ReadManifest(const std::string& path) {
  if (!PathExists(path)) {
    return Json({{"format", "overtok run"}, {"version", kVersion}, {"starts", Json::array()}});
  }
  OT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object() || !json.contains("starts") ||
      !json.at("starts").is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is not the manifest of a run; restore it, or start in another "
                     "checkpoint.directory"));
  }
  return json;
}

absl::StatusOr<int> TakeLock(const std::string& run) {
  const std::string path = JoinPath(run, kLock);
  OT_RETURN_IF_ERROR(RunFileFaultHook("open", path));
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", path, ": ", std::string(std::strerror(errno))));
  }
  // The kernel gives the lock back when the process ends, however it ends.
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    if (error != EWOULDBLOCK) {
      close(fd);
      return absl::UnavailableError(
          absl::StrCat("cannot lock ", path, ": ", std::string(std::strerror(error)),
                       "; its file system may have no locks, choose a checkpoint.directory on "
                       "another one"));
    }
    char holder[32] = "";
    const ssize_t n = pread(fd, holder, sizeof(holder) - 1, 0);
    holder[n > 0 ? n : 0] = '\0';
    close(fd);
    return absl::FailedPreconditionError(
        absl::StrCat("another process (id ", std::string(holder), ") trains in ", run,
                     "; wait for it, or choose another checkpoint.directory"));
  }
  const std::string id = std::to_string(getpid());
  if (ftruncate(fd, 0) != 0 || pwrite(fd, id.data(), id.size(), 0) < 0) {
    const absl::Status status = absl::UnavailableError(
        absl::StrCat("cannot write ", path, ": ", std::string(std::strerror(errno))));
    close(fd);
    return status;
  }
  return fd;
}

}  // namespace

std::string RunDirectory::ConfigOf(absl::string_view run) { return JoinPath(run, "config.yaml"); }
std::string RunDirectory::ManifestOf(absl::string_view run) {
  return JoinPath(run, "manifest.json");
}
std::string RunDirectory::MetricsOf(absl::string_view run) {
  return JoinPath(run, "metrics.jsonl");
}
std::string RunDirectory::CheckpointsOf(absl::string_view run) {
  return JoinPath(run, "checkpoints");
}

absl::StatusOr<std::unique_ptr<RunDirectory>> RunDirectory::Open(absl::string_view path,
                                                                 bool fresh) {
  const std::string run(path);
  if (fresh) {
    for (const std::string& part :
         {ConfigOf(run), ManifestOf(run), MetricsOf(run), CheckpointsOf(run)}) {
      if (!PathExists(part)) continue;
      return absl::AlreadyExistsError(absl::StrCat(
          "--fresh: ", run, " holds a run already (", part,
          "); leave --fresh out to continue it, or choose another checkpoint.directory"));
    }
  }
  OT_RETURN_IF_ERROR(Annotate(CreateDirectories(run), "checkpoint.directory"));
  OT_ASSIGN_OR_RETURN(const int lock, TakeLock(run));
  return std::unique_ptr<RunDirectory>(new RunDirectory(run, lock));
}

RunDirectory::~RunDirectory() { close(lock_); }

absl::Status RunDirectory::WriteConfig(absl::string_view resolved_yaml) const {
  return WriteFileAtomically(ConfigOf(path_), resolved_yaml);
}

absl::Status RunDirectory::RecordStart(const RunFacts& facts) const {
  const std::string path = ManifestOf(path_);
  OT_ASSIGN_OR_RETURN(Json manifest, ReadManifest(path));
  OT_ASSIGN_OR_RETURN(const std::string binary, Sha256HexOfFile("/proc/self/exe"));
  if (!facts.initial_values.empty()) manifest["initial_values_xxh3"] = facts.initial_values;
  manifest["data"] = Pairs(facts.data);
  manifest["evaluation"] = Pairs(facts.evaluation);
  manifest["starts"].push_back({{"time", UnixSeconds()},
                                {"from_step", facts.from_step},
                                {"process", getpid()},
                                {"host", HostFacts()},
                                {"device", facts.device},
                                {"precision", facts.precision},
                                {"threads", facts.threads},
                                {"launcher", facts.launcher},
                                {"data_ranks", facts.data_ranks},
                                {"tensor_ranks", facts.tensor_ranks},
                                {"config_sha256", facts.config_sha256},
                                {"binary_sha256", binary},
                                {"compiler", __VERSION__}});
  return WriteFileAtomically(path,
                             manifest.dump(1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace overtok

#include "core/comm/launch.h"

#include <unistd.h>

#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "core/comm/agreement.h"
#include "core/comm/mpi.h"

namespace overtok {
namespace {

class ProcessVariables final : public Environment {
 public:
  const char* Get(const char* name) const override { return std::getenv(name); }
};

// Slurm numbers the steps that srun did not start (batch script, interactive shell, allocation)
// from the top of 32 bits down.
constexpr int64_t kFirstSpecialStep = 0xfffffff0;

// A whole number of at least 0, or nothing where the variable is unset or empty.
absl::StatusOr<std::optional<int64_t>> Number(const Environment& environment, const char* name) {
  const char* text = environment.Get(name);
  if (text == nullptr || *text == '\0') return std::optional<int64_t>();
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable ", name, "=", text,
                     " is not a whole number; a launcher sets it, so unset it or use a launcher"));
  }
  return std::optional<int64_t>(value);
}

bool IsSrunStep(const Environment& environment) {
  const auto step = Number(environment, "SLURM_STEP_ID");
  return step.ok() && step->has_value() && **step < kFirstSpecialStep;
}

// Number of tasks of this step of srun; 0 where Slurm does not say.
absl::StatusOr<int64_t> StepTasks(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}) {
    OT_ASSIGN_OR_RETURN(const std::optional<int64_t> tasks, Number(environment, name));
    if (tasks.has_value()) return *tasks;
  }
  return 0;
}

// A pair of variables: rank and size, both or neither.
absl::StatusOr<bool> ReadPair(const Environment& environment, const char* rank_name,
                              const char* size_name, LaunchFacts* facts) {
  OT_ASSIGN_OR_RETURN(const std::optional<int64_t> rank, Number(environment, rank_name));
  OT_ASSIGN_OR_RETURN(const std::optional<int64_t> size, Number(environment, size_name));
  if (!rank.has_value() && !size.has_value()) return false;
  if (rank.has_value() != size.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("environment variable ", rank.has_value() ? rank_name : size_name,
                     " is set and ", rank.has_value() ? size_name : rank_name,
                     " is not; a launcher sets both: unset it to run "
                     "alone"));
  }
  if (*rank >= *size || *size > std::numeric_limits<int>::max()) {
    return absl::FailedPreconditionError(absl::StrCat("environment variables ", rank_name, "=",
                                                      *rank, " and ", size_name, "=", *size,
                                                      " contradict each other"));
  }
  facts->rank = static_cast<int>(*rank);
  facts->size = static_cast<int>(*size);
  return true;
}

absl::Status ReadRank(const Environment& environment, LaunchFacts* facts) {
  const bool step = IsSrunStep(environment);
  OT_ASSIGN_OR_RETURN(const bool open_mpi,
                      ReadPair(environment, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", facts));
  if (open_mpi) {
    facts->launcher = "mpirun";
    return absl::OkStatus();
  }
  OT_ASSIGN_OR_RETURN(const bool pmi, ReadPair(environment, "PMI_RANK", "PMI_SIZE", facts));
  if (pmi) {
    facts->launcher = step ? "srun" : "mpirun";
    return absl::OkStatus();
  }
  OT_ASSIGN_OR_RETURN(const std::optional<int64_t> pmix, Number(environment, "PMIX_RANK"));
  OT_ASSIGN_OR_RETURN(const int64_t tasks, StepTasks(environment));
  if (pmix.has_value()) {
    facts->launcher = step ? "srun" : "mpirun";
    facts->rank = static_cast<int>(*pmix);
    facts->size = step ? static_cast<int>(tasks) : 0;
    if (facts->size > 0 && facts->rank >= facts->size) {
      return absl::FailedPreconditionError(
          absl::StrCat("environment variable PMIX_RANK=", facts->rank, " contradicts the ", tasks,
                       " tasks of this Slurm step"));
    }
    return absl::OkStatus();
  }
  LaunchFacts torchrun;
  if (environment.Get("RANK") != nullptr && environment.Get("WORLD_SIZE") != nullptr) {
    OT_RETURN_IF_ERROR(ReadPair(environment, "RANK", "WORLD_SIZE", &torchrun).status());
    if (torchrun.size > 1) {
      return absl::FailedPreconditionError(absl::StrCat(
          "RANK=", torchrun.rank, " and WORLD_SIZE=", torchrun.size,
          " are set as torchrun sets them, but overtok's ranks meet through MPI and no MPI "
          "launcher started this process; use `mpirun -n ",
          torchrun.size,
          " overtok ...` or `srun --mpi=pmix overtok ...`, or unset WORLD_SIZE to "
          "run alone"));
    }
  }
  if (!step) return absl::OkStatus();
  if (tasks > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "srun started ", tasks,
        " processes without support for MPI: each would train alone, as "
        "rank 0 of 1. Use `srun --mpi=pmix` (`srun --mpi=list` shows what this Slurm offers) or "
        "mpirun; for one process, `srun -n 1`"));
  }
  facts->launcher = "srun";
  return absl::OkStatus();
}

// The place on this host, as launchers tell it; MPI knows better once it is there.
absl::Status ReadLocalRank(const Environment& environment, LaunchFacts* facts) {
  const bool step = IsSrunStep(environment);
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID", "LOCAL_RANK"}) {
    if (std::string(name) == "SLURM_LOCALID" && !step) continue;
    OT_ASSIGN_OR_RETURN(const std::optional<int64_t> rank, Number(environment, name));
    if (!rank.has_value()) continue;
    facts->local_rank = static_cast<int>(*rank);
    break;
  }
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    OT_ASSIGN_OR_RETURN(const std::optional<int64_t> size, Number(environment, name));
    if (!size.has_value()) continue;
    facts->local_size = static_cast<int>(*size);
    break;
  }
  return absl::OkStatus();
}

}  // namespace

const Environment& ProcessEnvironment() {
  static const ProcessVariables variables;
  return variables;
}

absl::StatusOr<LaunchFacts> ReadLaunch(const Environment& environment) {
  LaunchFacts facts;
  facts.launcher = "none";
  OT_RETURN_IF_ERROR(ReadRank(environment, &facts));
  if (facts.size != 1) OT_RETURN_IF_ERROR(ReadLocalRank(environment, &facts));
  char host[256] = "";
  if (gethostname(host, sizeof host - 1) == 0) facts.host = host;
  for (const char* name :
       {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT",
        "SLURM_JOB_NODELIST", "SLURMD_NODENAME", "SLURM_JOB_END_TIME"}) {
    const char* value = environment.Get(name);
    if (value != nullptr) facts.job[name] = value;
  }
  return facts;
}

int PresumedRank(const Environment& environment) {
  const auto facts = ReadLaunch(environment);
  if (facts.ok()) return facts->rank;
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "RANK", "SLURM_PROCID"}) {
    if (std::string(name) == "SLURM_PROCID" && !IsSrunStep(environment)) continue;
    const auto rank = Number(environment, name);
    if (rank.ok() && rank->has_value()) return static_cast<int>(**rank);
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<Communicator>> JoinWorld(LaunchFacts* facts) {
  OT_ASSIGN_OR_RETURN(*facts, ReadLaunch(ProcessEnvironment()));
  if (facts->size == 1) return OneRank();
  MpiPlace place;
  OT_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> world, JoinMpi(&place));
  if (facts->size > 0 && world->size() != facts->size) {
    const std::string what =
        absl::StrCat(facts->launcher, " started ", facts->size, " processes, but MPI (",
                     place.library, ") sees ", world->size(), ": ranks would train apart. ");
    return absl::FailedPreconditionError(
        facts->launcher == "srun"
            ? absl::StrCat(what,
                           "Use `srun --mpi=pmix` (`srun --mpi=list` shows what this Slurm "
                           "offers), or mpirun")
            : absl::StrCat(what, "Use the mpirun that belongs to this MPI library"));
  }
  facts->rank = world->rank();
  facts->size = world->size();
  facts->local_rank = place.local_rank;
  facts->local_size = place.local_size;
  return world;
}

absl::Status CheckNodes(Communicator& world, const LaunchFacts& facts) {
  constexpr int64_t kLength = 256;
  std::vector<uint8_t> mine(kLength), all(static_cast<size_t>(kLength * world.size()));
  for (size_t i = 0; i < facts.host.size() && i + 1 < kLength; ++i) {
    mine[i] = static_cast<uint8_t>(facts.host[i]);
  }
  world.AllGather(Tensor(mine.data(), {kLength}), Tensor(all.data(), {world.size(), kLength}),
                  Traffic::kControl);
  std::vector<std::pair<std::string, int>> hosts;  // in the order of their first ranks
  for (int r = 0; r < world.size(); ++r) {
    const std::string host(reinterpret_cast<const char*>(all.data() + kLength * r));
    size_t at = 0;
    while (at < hosts.size() && hosts[at].first != host) ++at;
    if (at == hosts.size()) hosts.emplace_back(host, 0);
    ++hosts[at].second;
  }
  std::string counts;
  bool equal = true;
  for (const auto& [host, count] : hosts) {
    absl::StrAppend(&counts, counts.empty() ? "" : ", ", host, " runs ", count);
    equal = equal && count == hosts.front().second;
  }
  // Every rank has counted the same, and Agree marks the error as everybody's.
  return Agree(world,
               equal ? absl::OkStatus()
                     : absl::FailedPreconditionError(absl::StrCat(
                           "every host has to run equally many ranks, but ", counts, " of the ",
                           world.size(),
                           "; use `mpirun --map-by ppr:N:node` or `srun --ntasks-per-node=N`")));
}

std::string ThreadWarning(const LaunchFacts& facts, int threads, int allowed, int cores) {
  if (threads > allowed) {
    return absl::StrCat("rank ", facts.rank, " runs ", threads, " threads on the ", allowed,
                        allowed == 1 ? " core" : " cores",
                        " it is bound to, and will be slow: set OMP_NUM_THREADS=", allowed,
                        ", or give ranks more cores (mpirun --map-by slot:PE=", threads,
                        ", srun --cpus-per-task=", threads, ")");
  }
  if (facts.local_size * threads > cores) {
    const int fit = cores / facts.local_size;
    return absl::StrCat(
        facts.local_size, " ranks of ", threads, " threads share the ", cores, " cores of ",
        facts.host, ", and will be slow: ",
        fit >= 1 ? absl::StrCat("set OMP_NUM_THREADS=", fit) : "start fewer ranks on a host");
  }
  return "";
}

}  // namespace overtok

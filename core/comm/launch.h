// How this process was started: alone, by mpirun or by srun. MPI is initialised only where a
// launcher started several of us; what looks like many ranks and is not gets refused, with what to
// do (docs/parallel.md).
#pragma once

#include <map>
#include <memory>
#include <string>

#include "core/comm/communicator.h"
#include "core/status.h"

namespace overtok {

struct LaunchFacts {
  std::string launcher = "none";       // "none", "mpirun", "srun"
  int rank = 0, size = 1;              // size 0: only MPI knows
  int local_rank = 0, local_size = 1;  // among the processes of this host
  std::string host;
  std::map<std::string, std::string> job;  // SLURM_JOB_ID, ... as far as set
};

// The environment as a function, so that tests need not change the process's own.
class Environment {
 public:
  virtual ~Environment() = default;
  virtual const char* Get(const char* name) const = 0;  // null when unset
};

const Environment& ProcessEnvironment();

// What the launch variables say, without starting anything, read in this order: Open MPI's, PMI's,
// PMIx's, torchrun's, and Slurm's only inside a step that srun started (a batch script inherits
// SLURM_PROCID=0 and SLURM_NTASKS, and what it starts runs alone). Errors: variables that
// contradict each other, and a launcher without support for MPI (N processes that each believe to
// be rank 0 of 1).
absl::StatusOr<LaunchFacts> ReadLaunch(const Environment& environment);
// This process's rank; where ReadLaunch refuses, the one that any variable names, so that one
// process of many tells.
int PresumedRank(const Environment& environment);

// The world of this process: MPI's where a launcher started several, else OneRank(). Call once,
// before threads are started; MPI is finalised when the world is destroyed. Fills `facts`. Errors:
// those of ReadLaunch, and an MPI that sees fewer ranks than were started.
absl::StatusOr<std::unique_ptr<Communicator>> JoinWorld(LaunchFacts* facts);

// Collective. An error, the same on all ranks, naming hosts and counts unless every host runs
// equally many ranks: the slowest host would set the pace of all.
absl::Status CheckNodes(Communicator& world, const LaunchFacts& facts);
// What to say of a rank that runs `threads` OpenMP threads and may use `allowed` of the host's
// `cores`; empty where every thread has a core.
std::string ThreadWarning(const LaunchFacts& facts, int threads, int allowed, int cores);

}  // namespace overtok

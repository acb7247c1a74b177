#include "tools/program.h"

#include <omp.h>
#include <unistd.h>

#include <cstdio>
#include <sstream>
#include <utility>

#include "core/comm/agreement.h"

namespace overtok {
namespace {

// A launcher ends all processes when the first leaves with an error. What rank 0 has to say of a
// mistake that all made before they met must be out by then: the others leave after it.
void LetRank0Speak() {
  if (PresumedRank(ProcessEnvironment()) > 0) sleep(1);
}

// OK where it works on any number of ranks.
absl::Status PrepareRanks(Communicator& world, const LaunchFacts& launch) {
  if (world.size() == 1) return absl::OkStatus();
  OT_RETURN_IF_ERROR(CheckNodes(world, launch));
  const int cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const std::string warning =
      ThreadWarning(launch, omp_get_max_threads(), omp_get_num_procs(), cores);
  if (world.rank() == 0 && !warning.empty()) {
    std::fprintf(stderr, "overtok: warning: %s\n", warning.c_str());
  }
  return absl::OkStatus();
}

}  // namespace

Program::Program()
    : app_("overtok: pretraining with sampled softmax and over-tokenized vocabularies", "overtok") {
  app_.require_subcommand(1);
}

CLI::App* Program::Add(const std::string& name, const std::string& description,
                       std::function<absl::StatusOr<int>()> run) {
  return AddBelow(&app_, name, description, std::move(run));
}

CLI::App* Program::AddBelow(CLI::App* parent, const std::string& name,
                            const std::string& description,
                            std::function<absl::StatusOr<int>()> run) {
  return Register(parent, name, description,
                  [this, run = std::move(run)] { return RunOnOneRank(run); });
}

CLI::App* Program::AddParallel(const std::string& name, const std::string& description,
                               ParallelRun run) {
  return AddParallelBelow(&app_, name, description, std::move(run));
}

CLI::App* Program::AddParallelBelow(CLI::App* parent, const std::string& name,
                                    const std::string& description, ParallelRun run) {
  return Register(parent, name, description,
                  [this, run = std::move(run)] { return RunOnManyRanks(run); });
}

CLI::App* Program::Register(CLI::App* parent, const std::string& name,
                            const std::string& description, std::function<int()> run) {
  CLI::App* command = parent->add_subcommand(name, description);
  const std::string full = parent == &app_ ? name : parent->get_name() + " " + name;
  command->callback([this, full, run = std::move(run)] {
    chosen_name_ = full;
    chosen_ = run;
  });
  return command;
}

int Program::Print(const absl::Status& status) const {
  const std::string message(status.message());
  std::fprintf(stderr, "overtok %s: %s\n", chosen_name_.c_str(), message.c_str());
  return 1;
}

int Program::Refuse(const absl::Status& status) const {
  if (PresumedRank(ProcessEnvironment()) == 0) Print(status);
  LetRank0Speak();
  return 1;
}

int Program::RunOnOneRank(const std::function<absl::StatusOr<int>()>& run) const {
  const absl::StatusOr<LaunchFacts> launch = ReadLaunch(ProcessEnvironment());
  if (!launch.ok()) return Refuse(launch.status());
  if (launch->size != 1) {
    return Refuse(absl::FailedPreconditionError(
        absl::StrCat("runs on one rank, but ", launch->launcher, " started ",
                     launch->size == 0 ? "an unknown number" : absl::StrCat(launch->size),
                     "; start it without ", launch->launcher)));
  }
  const absl::StatusOr<int> code = run();
  return code.ok() ? *code : Print(code.status());
}

int Program::RunOnManyRanks(const ParallelRun& run) const {
  LaunchFacts launch;
  absl::StatusOr<std::unique_ptr<Communicator>> world = JoinWorld(&launch);
  if (!world.ok()) return Refuse(world.status());
  const absl::Status prepared = PrepareRanks(**world, launch);
  const absl::StatusOr<int> code = prepared.ok() ? run(**world, launch) : prepared;
  if (!code.ok() && (*world)->size() > 1 && !IsAgreed(code.status())) {
    Print(Annotate(code.status(),
                   absl::StrCat("rank ", launch.rank, " on ", launch.host, " ends all ranks")));
    (*world)->Abort(1);
  }
  if (!code.ok() && (*world)->rank() == 0) Print(code.status());
  std::fflush(nullptr);
  // Ranks wait for each other here, so none takes the others down while they still speak.
  world->reset();
  return code.ok() ? *code : 1;
}

int Program::Main(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (PresumedRank(ProcessEnvironment()) == 0) return app_.exit(error);
    std::ostringstream unheard;
    const int code = app_.exit(error, unheard, unheard);
    if (code != 0) LetRank0Speak();
    return code;
  }
  return chosen_();
}

}  // namespace overtok

// The frame of the `overtok` program: subcommands register here, one file each, and return an
// absl::Status or an exit code. It also decides how a job of many ranks ends: together, with one
// message, or all at once where one rank alone cannot go on (docs/parallel.md).
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "core/comm/communicator.h"
#include "core/comm/launch.h"
#include "core/status.h"

namespace overtok {

class Program {
 public:
  Program();
  // Adds `overtok NAME`; `run` is called after parsing when NAME was given. Its value is the
  // process's exit code; an error is printed to standard error as "overtok NAME: message" and exits
  // with 1 (usage mistakes exit with CLI11's code).
  CLI::App* Add(const std::string& name, const std::string& description,
                std::function<absl::StatusOr<int>()> run);
  // The same below an existing subcommand (`overtok data info`).
  CLI::App* AddBelow(CLI::App* parent, const std::string& name, const std::string& description,
                     std::function<absl::StatusOr<int>()> run);
  // What a subcommand of many ranks is called with, on every rank. An error that all ranks agreed
  // on (core/comm/agreement.h) is printed by rank 0 and every rank exits with 1; an error that one
  // rank returns alone is printed with its rank and host, and ends all ranks at once. Exit codes
  // are the same on all ranks. Communicators divided from `world` must be gone when it returns.
  using ParallelRun =
      std::function<absl::StatusOr<int>(Communicator& world, const LaunchFacts& launch)>;
  // As Add, of a subcommand that runs on any number of ranks. Those of Add and AddBelow refuse to
  // run on more than one.
  CLI::App* AddParallel(const std::string& name, const std::string& description, ParallelRun run);
  CLI::App* AddParallelBelow(CLI::App* parent, const std::string& name,
                             const std::string& description, ParallelRun run);
  CLI::App& app() { return app_; }
  int Main(int argc, char** argv);

 private:
  CLI::App* Register(CLI::App* parent, const std::string& name, const std::string& description,
                     std::function<int()> run);
  int RunOnOneRank(const std::function<absl::StatusOr<int>()>& run) const;
  int RunOnManyRanks(const ParallelRun& run) const;
  // Prints an error; returns its exit code.
  int Print(const absl::Status& status) const;
  // The same of one that every process met before ranks could meet: rank 0 prints it.
  int Refuse(const absl::Status& status) const;

  CLI::App app_;
  std::string chosen_name_;
  std::function<int()> chosen_;
};

// One per file in this folder.
void AddTokenize(Program& program);
void AddTokenizer(Program& program);
void AddData(Program& program);
void AddShrink(Program& program, CLI::App* data);      // below AddData's
void AddDataTables(Program& program, CLI::App* data);  // below AddData's
void AddReport(Program& program);
void AddConfig(Program& program);
void AddTrain(Program& program);
void AddEval(Program& program);
void AddPlan(Program& program);
void AddTrace(Program& program);
void AddCompare(Program& program);
void AddBench(Program& program);
void AddBenchOps(Program& program, CLI::App* bench);  // below AddBench's

}  // namespace overtok

// The frame of the `overtok` program: subcommands register here, one file each, and return an
// absl::Status or an exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

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
  CLI::App& app() { return app_; }
  int Main(int argc, char** argv);

 private:
  CLI::App app_;
  std::string chosen_name_;
  std::function<absl::StatusOr<int>()> chosen_;
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
void AddBench(Program& program);
void AddBenchOps(Program& program, CLI::App* bench);  // below AddBench's

}  // namespace overtok

// `overtok eval`: scores a checkpoint of a run on the evaluation sets of a configuration.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/io/files.h"
#include "tools/program.h"
#include "trainer/config/key.h"
#include "trainer/config/load.h"
#include "trainer/evaluate.h"
#include "trainer/run_directory.h"

namespace overtok {
namespace {

struct Arguments {
  std::string config;
  std::vector<std::string> overrides;
  std::optional<int64_t> checkpoint;
  std::string out;
};

absl::StatusOr<int> Run(const Arguments& arguments) {
  std::string path = arguments.config;
  std::vector<std::string> overrides = arguments.overrides;
  if (IsDirectory(path)) {
    // The run may have been moved since its configuration was written.
    overrides.insert(overrides.begin(),
                     absl::StrCat("checkpoint.directory=", FormatText(arguments.config)));
    path = RunDirectory::ConfigOf(arguments.config);
  }
  OT_ASSIGN_OR_RETURN(const LoadedConfig loaded, LoadConfig(path, overrides));
  OT_ASSIGN_OR_RETURN(const EvaluationReport report,
                      EvaluateCheckpoint(loaded, arguments.checkpoint));
  std::fputs(report.ToText().c_str(), stdout);
  if (!arguments.out.empty()) {
    OT_RETURN_IF_ERROR(WriteFileAtomically(arguments.out, report.ToJson()));
  }
  return 0;
}

}  // namespace

void AddEval(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.Add("eval", "Loss and bits per byte of a checkpoint on held-out sets",
                                  [arguments] { return Run(*arguments); });
  command->add_option("config", arguments->config, "Run directory, or configuration file")
      ->required();
  command->add_option("overrides", arguments->overrides, "key.path=value ...");
  command->add_option("--checkpoint", arguments->checkpoint, "Step of the checkpoint; the newest");
  command->add_option("--out", arguments->out, "JSON file to write the scores to");
}

}  // namespace overtok

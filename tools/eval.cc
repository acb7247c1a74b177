// `overtok eval`: scores a checkpoint of a run on the evaluation sets of a configuration.
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/io/files.h"
#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/config/key.h"
#include "trainer/evaluate.h"
#include "trainer/run_directory.h"

namespace overtok {
namespace {

struct Arguments {
  ConfigArguments config;
  std::string split = "held-out", out;
  std::optional<int64_t> windows;
  EvaluateOptions options;
};

absl::StatusOr<int> Run(const Arguments& arguments, Communicator& world) {
  EvaluateOptions options = arguments.options;
  options.seen = arguments.split == "seen";
  if (!options.seen && arguments.split != "held-out") {
    return absl::InvalidArgumentError(
        absl::StrCat("--split is \"", arguments.split, "\", expected held-out or seen"));
  }
  if (arguments.windows.has_value()) {
    if (!options.seen) {
      return absl::InvalidArgumentError(
          "--windows has no effect without --split seen: evaluation sets are scored whole");
    }
    options.windows = *arguments.windows;
  }
  ConfigArguments config = arguments.config;
  if (IsDirectory(config.config)) {
    // The run may have been moved since its configuration was written.
    config.overrides.insert(config.overrides.begin(),
                            absl::StrCat("checkpoint.directory=", FormatText(config.config)));
    config.config = RunDirectory::ConfigOf(config.config);
  }
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadOnAll(config, world));
  OT_ASSIGN_OR_RETURN(const EvaluationReport report,
                      EvaluateCheckpoint(std::move(loaded), options, &world));
  if (world.rank() != 0) return 0;
  std::fputs(report.ToText().c_str(), stdout);
  if (!arguments.out.empty()) {
    OT_RETURN_IF_ERROR(WriteFileAtomically(arguments.out, report.ToJson()));
  }
  return 0;
}

}  // namespace

void AddEval(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command =
      program.AddParallel("eval", "Loss and bits per byte of a checkpoint on held-out sets",
                          [arguments](Communicator& world, const LaunchFacts& /*launch*/) {
                            return Run(*arguments, world);
                          });
  AddConfigArguments(command, &arguments->config, "Run directory, or configuration file");
  command->add_option("--checkpoint", arguments->options.step,
                      "Step of the checkpoint; the newest");
  command->add_option("--split", arguments->split,
                      "held-out: the evaluation sets; seen: also windows of the training data by "
                      "how often the run has read them [held-out]");
  command->add_option("--windows", arguments->windows,
                      "Windows of each slice of --split seen [256]");
  command->add_flag("--scramble-ngrams", arguments->options.scramble_ngrams,
                    "Displace every n-gram's row: what the content of the tables is worth");
  command->add_option("--out", arguments->out, "JSON file to write the scores to");
}

}  // namespace overtok

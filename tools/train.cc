// `overtok train`: trains a configuration, from the newest checkpoint of its run directory on.
#include <memory>

#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/train_loop.h"

namespace overtok {
namespace {

struct Arguments {
  ConfigArguments config;
  bool fresh = false;
};

absl::StatusOr<int> Run(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, Load(arguments.config));
  TrainOptions options;
  options.fresh = arguments.fresh;
  return Train(std::move(loaded), options);
}

}  // namespace

void AddTrain(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.Add("train",
                                  "Train a configuration; the same command continues a run that "
                                  "was stopped (exit code 75: stopped by a signal, all saved)",
                                  [arguments] { return Run(*arguments); });
  AddConfigArguments(command, &arguments->config);
  command->add_flag("--fresh", arguments->fresh, "Refuse a run directory that holds a run already");
}

}  // namespace overtok

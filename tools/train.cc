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

absl::StatusOr<int> Run(const Arguments& arguments, Communicator& world,
                        const LaunchFacts& launch) {
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadOnAll(arguments.config, world));
  TrainOptions options;
  options.fresh = arguments.fresh;
  options.launch = launch;
  return Train(std::move(loaded), options, &world);
}

}  // namespace

void AddTrain(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.AddParallel(
      "train",
      "Train a configuration, on one rank or as many as mpirun or srun starts; the same command "
      "continues a run that was stopped (exit code 75: stopped by a signal, all saved)",
      [arguments](Communicator& world, const LaunchFacts& launch) {
        return Run(*arguments, world, launch);
      });
  AddConfigArguments(command, &arguments->config);
  command->add_flag("--fresh", arguments->fresh, "Refuse a run directory that holds a run already");
}

}  // namespace overtok

// `overtok trace`: writes what some training steps did, for another implementation to check
// (docs/formats/trace.md).
#include "trainer/trace.h"

#include <memory>

#include "tools/config_arguments.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  ConfigArguments config;
  TraceOptions options;
};

absl::StatusOr<int> Run(const Arguments& arguments, Communicator& world) {
  TraceOptions options = arguments.options;
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, LoadOnAll(arguments.config, world));
  OT_RETURN_IF_ERROR(WriteTrace(std::move(loaded), options, &world));
  return 0;
}

}  // namespace

void AddTrace(Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.AddParallel(
      "trace", "Write what some training steps did, for another implementation to check",
      [arguments](Communicator& world, const LaunchFacts& /*launch*/) {
        return Run(*arguments, world);
      });
  AddConfigArguments(command, &arguments->config);
  command->add_option("--steps", arguments->options.steps, "Training steps to run")
      ->capture_default_str();
  command->add_option("--out", arguments->options.out, "HDF5 file to write")->required();
  command
      ->add_option("--max-elements", arguments->options.max_elements,
                   "Refuse tensors larger than this")
      ->capture_default_str();
  command->add_flag("--unjudged", arguments->options.unjudged,
                    "Allow options that no reference knows");
}

}  // namespace overtok

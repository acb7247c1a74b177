// overtok data tables: how the n-gram tables of a configuration would be used by its own data.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "tools/config_arguments.h"
#include "tools/program.h"
#include "trainer/table_statistics.h"

namespace overtok {
namespace {

struct Arguments {
  ConfigArguments config;
  int64_t steps = 0;
  bool json = false;
};

absl::StatusOr<int> Run(const Arguments& arguments) {
  OT_ASSIGN_OR_RETURN(LoadedConfig loaded, Load(arguments.config));
  OT_ASSIGN_OR_RETURN(const TableStatistics statistics,
                      MeasureTables(std::move(loaded), arguments.steps));
  const std::string text = arguments.json ? statistics.ToJson() : statistics.ToText();
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

void AddDataTables(Program& program, CLI::App* data) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = program.AddBelow(
      data, "tables", "Rows touched, hits and collisions of a configuration's n-gram tables",
      [arguments] { return Run(*arguments); });
  AddConfigArguments(command, &arguments->config);
  command->add_option("--steps", arguments->steps, "First steps of the run to count; 0: all [0]")
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--json", arguments->json, "One JSON object");
}

}  // namespace overtok

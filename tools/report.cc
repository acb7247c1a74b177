// overtok report DIR...: one HTML page about one or several runs.
#include "trainer/report/report.h"

#include <memory>

#include "core/console.h"
#include "tools/program.h"

namespace overtok {

void AddReport(Program& program) {
  struct Options {
    std::vector<std::string> directories;
    std::string out = "report.html", svg;
  };
  auto options = std::make_shared<Options>();
  CLI::App* command = program.Add(
      "report", "Write an HTML page with the loss curves and final numbers of runs",
      [options]() -> absl::StatusOr<int> {
        OT_ASSIGN_OR_RETURN(const std::vector<std::string> written,
                            WriteReport(options->directories, options->out, options->svg));
        for (const std::string& path : written) LogInfo(absl::StrCat("wrote ", path));
        return 0;
      });
  command->add_option("DIR", options->directories, "run directories (checkpoint.directory)")
      ->required();
  command->add_option("--out", options->out, "the page to write")->capture_default_str();
  command
      ->add_option("--svg", options->svg,
                   "also write the pictures as PREFIX-training.svg, PREFIX-held-out.svg, "
                   "and PREFIX-passes.svg for runs that repeat data")
      ->type_name("PREFIX");
}

}  // namespace overtok

#include "tools/program.h"

#include <cstdio>

namespace overtok {

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
  CLI::App* command = parent->add_subcommand(name, description);
  const std::string full = parent == &app_ ? name : parent->get_name() + " " + name;
  command->callback([this, full, run = std::move(run)] {
    chosen_name_ = full;
    chosen_ = run;
  });
  return command;
}

int Program::Main(int argc, char** argv) {
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_.exit(error);
  }
  const absl::StatusOr<int> code = chosen_();
  if (code.ok()) return *code;
  const std::string message(code.status().message());
  std::fprintf(stderr, "overtok %s: %s\n", chosen_name_.c_str(), message.c_str());
  return 1;
}

}  // namespace overtok

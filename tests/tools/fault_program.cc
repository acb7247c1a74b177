// A program of many ranks in which rank 1 comes to harm, for job_end_test.cc: `fault_program fault
// --mode MODE`. Every rank writes its process id into DIRECTORY/RANK, then rank 1 does as MODE says
// while the others wait for it.
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>

#include "core/comm/agreement.h"
#include "tools/program.h"

namespace overtok {
namespace {

struct Arguments {
  std::string mode, directory;
};

// Sends `count` elements of `dtype` to rank 0, which expects four f32 elements.
void SendToRank0(Communicator& world, int64_t count, DType dtype) {
  double memory[64] = {};
  const Communicator::Message theirs{0, Tensor(memory, dtype, {count})};
  const Communicator::Message mine{1, Tensor(memory, DType::kF32, {4})};
  if (world.rank() == 1) world.Exchange({&theirs, 1}, {}, Traffic::kControl);
  if (world.rank() == 0) world.Exchange({}, {&mine, 1}, Traffic::kControl);
}

absl::StatusOr<int> Run(const Arguments& arguments, Communicator& world) {
  std::ofstream(arguments.directory + "/" + std::to_string(world.rank())) << getpid();
  world.Barrier();
  const std::string& mode = arguments.mode;
  const bool harmed = world.rank() == 1;
  if (mode == "agreed") {
    return Agree(world, harmed ? absl::StatusOr<int>(absl::NotFoundError("no shard 7"))
                               : absl::StatusOr<int>(0));
  }
  if (mode == "all") return Agree(world, absl::StatusOr<int>(absl::NotFoundError("no key sed")));
  if (mode == "code") return 75;
  if (mode == "shorter") SendToRank0(world, 3, DType::kF32);
  if (mode == "longer") SendToRank0(world, 40, DType::kF32);
  if (mode == "dtype") SendToRank0(world, 4, DType::kI32);
  if (harmed && mode == "status") return absl::DataLossError("shard 9 is cut short");
  if (harmed && mode == "check") OT_CHECK_EQ(1 + 1, 3);
  if (harmed && mode == "throw") throw std::runtime_error("thrown");
  if (harmed && mode == "kill") raise(SIGKILL);
  if (harmed && mode == "exit") std::_Exit(3);
  float mine = 0, all[64] = {};
  world.AllGather(Tensor(&mine, {1}), Tensor(all, {world.size()}), Traffic::kControl);
  if (harmed) sleep(60);
  world.Barrier();
  return 0;
}

}  // namespace
}  // namespace overtok

int main(int argc, char** argv) {
  overtok::Program program;
  auto arguments = std::make_shared<overtok::Arguments>();
  CLI::App* fault = program.AddParallel(
      "fault", "comes to harm",
      [arguments](overtok::Communicator& world, const overtok::LaunchFacts& /*launch*/) {
        return overtok::Run(*arguments, world);
      });
  fault->add_option("--mode", arguments->mode)->required();
  fault->add_option("--directory", arguments->directory)->required();
  program.Add("alone", "runs on one rank", []() -> absl::StatusOr<int> { return 0; });
  return program.Main(argc, argv);
}

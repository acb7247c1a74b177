// main() of the test programs that mpirun starts. Rank 0 reports as usual, the others only what
// fails; the program fails on all ranks where it fails on one.
#include "tests/support/mpi_main.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace overtok::testing {
namespace {

std::unique_ptr<Communicator> world;
LaunchFacts launch;

class Failures final : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::printf("rank %d: %s:%d: %s\n", world->rank(),
                result.file_name() == nullptr ? "" : result.file_name(), result.line_number(),
                result.message());
    std::fflush(stdout);
  }
};

}  // namespace

Communicator& World() { return *world; }
const LaunchFacts& Launch() { return launch; }

}  // namespace overtok::testing

int main(int argc, char** argv) {
  using namespace overtok::testing;
  ::testing::InitGoogleTest(&argc, argv);
  auto joined = overtok::JoinWorld(&launch);
  if (!joined.ok()) {
    std::fprintf(stderr, "%s\n", std::string(joined.status().message()).c_str());
    return 1;
  }
  world = std::move(*joined);
  if (world->rank() != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  const bool failed = world->Any(RUN_ALL_TESTS() != 0);
  world.reset();
  return failed ? 1 : 0;
}

// Messages that travel in pieces, as those above 256 MiB do: here pieces of 8 bytes. MPI is joined
// by hand for it, so the program has a main of its own.
#include <gtest/gtest.h>

#include <cstdio>
#include <vector>

#include "core/comm/mpi.h"
#include "tests/core/comm/exchange_checks.h"

namespace overtok {
namespace {

Communicator* world = nullptr;

TEST(MpiPieces, UnevenAndEmptyMessages) { testing::CheckUnevenAndEmptyMessages(*world); }
TEST(MpiPieces, EveryDType) { testing::CheckEveryDType(*world); }
TEST(MpiPieces, OrderOfExchangesInFlight) { testing::CheckOrderOfExchangesInFlight(*world); }
TEST(MpiPieces, Broadcasts) { testing::CheckBroadcasts(*world); }
TEST(MpiPieces, GroupsOfAMesh) { testing::CheckGroupsOfAMesh(*world); }

}  // namespace
}  // namespace overtok

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  overtok::MpiPlace place;
  auto joined = overtok::JoinMpi(&place, 8);
  if (!joined.ok() || place.library.empty() || place.local_size != (*joined)->size()) {
    std::fprintf(stderr, "cannot join: %s\n", std::string(joined.status().message()).c_str());
    return 1;
  }
  overtok::world = joined->get();
  const bool failed = (*joined)->Any(RUN_ALL_TESTS() != 0);
  joined->reset();
  return failed ? 1 : 0;
}

// The mesh: who belongs to which group, and that a group's own rank counts inside it.
#include "core/comm/mesh.h"

#include <gtest/gtest.h>

#include "tests/support/thread_ranks.h"

namespace overtok {
namespace {

using testing::RunOnRanks;

TEST(Layout, WorldRankAndPlaceInTheMeshAreOneAnothersInverse) {
  for (const int tensor : {1, 2, 3, 6}) {
    for (int rank = 0; rank < 6; ++rank) {
      const Layout layout = Layout::Of(6, rank, tensor);
      EXPECT_EQ(layout.world(), 6);
      EXPECT_EQ(layout.world_rank(), rank);
      EXPECT_LT(layout.data_rank, layout.data);
      EXPECT_LT(layout.tensor_rank, layout.tensor);
    }
  }
}

TEST(Layout, WorldRank2OfATwoByTwoMeshIsTensorRank0) {
  const Layout layout = Layout::Of(4, 2, 2);
  EXPECT_EQ(layout.tensor_rank, 0);
  EXPECT_EQ(layout.data_rank, 1);
}

TEST(LayoutDeathTest, RefusesRanksThatDoNotFillTheMesh) {
  EXPECT_DEATH(Layout::Of(6, 0, 4), "6 ranks in tensor groups of 4");
  EXPECT_DEATH(Layout::Of(4, 4, 2), "rank 4 of 4");
}

TEST(Mesh, GroupsHoldTheRanksTheyShould) {
  RunOnRanks(6, [](Communicator& world) {
    const Mesh mesh(&world, 2);
    EXPECT_EQ(mesh.data().size(), 3);
    EXPECT_EQ(mesh.tensor().size(), 2);
    EXPECT_EQ(mesh.data().rank(), world.rank() / 2);
    EXPECT_EQ(mesh.tensor().rank(), world.rank() % 2);
    int64_t mine = world.rank();
    std::vector<int64_t> of_data(3), of_tensor(2);
    mesh.data().AllGather(Tensor(&mine, {1}), Tensor(of_data.data(), {3}), Traffic::kControl);
    mesh.tensor().AllGather(Tensor(&mine, {1}), Tensor(of_tensor.data(), {2}), Traffic::kControl);
    for (int d = 0; d < 3; ++d) EXPECT_EQ(of_data[size_t(d)], d * 2 + world.rank() % 2);
    for (int t = 0; t < 2; ++t) EXPECT_EQ(of_tensor[size_t(t)], world.rank() / 2 * 2 + t);
  });
}

TEST(Mesh, APlannedRankHasItsPlaceAndCannotCommunicate) {
  const Mesh mesh(Layout::Of(1024, 9, 8));
  EXPECT_EQ(mesh.world().size(), 1024);
  EXPECT_EQ(mesh.world().rank(), 9);
  EXPECT_EQ(mesh.data().size(), 128);
  EXPECT_EQ(mesh.data().rank(), 1);
  EXPECT_EQ(mesh.tensor().rank(), 1);
  EXPECT_DEATH(mesh.tensor().Any(true), "planned rank 1 of 8 cannot communicate");
  EXPECT_DEATH(mesh.world().Barrier(), "planned rank 9 of 1024 cannot communicate");
}

}  // namespace
}  // namespace overtok

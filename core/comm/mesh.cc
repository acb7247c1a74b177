#include "core/comm/mesh.h"

namespace overtok {

Layout Layout::Of(int world, int world_rank, int tensor, Split vocabulary) {
  OT_CHECK(tensor >= 1 && world >= 1 && world % tensor == 0)
      << world << " ranks in tensor groups of " << tensor;
  OT_CHECK(world_rank >= 0 && world_rank < world) << "rank " << world_rank << " of " << world;
  OT_CHECK(vocabulary == Split::kBlocks || vocabulary == Split::kRows);
  Layout layout;
  layout.data = world / tensor;
  layout.tensor = tensor;
  layout.data_rank = world_rank / tensor;
  layout.tensor_rank = world_rank % tensor;
  layout.vocabulary = vocabulary;
  return layout;
}

Mesh::Mesh(Communicator* world, int tensor, Split vocabulary)
    : layout_(Layout::Of(world->size(), world->rank(), tensor, vocabulary)),
      world_(world),
      data_(world->Divide(layout_.tensor_rank)),
      tensor_(world->Divide(layout_.data_rank)) {
  OT_CHECK_EQ(data_->rank(), layout_.data_rank);
  OT_CHECK_EQ(data_->size(), layout_.data);
  OT_CHECK_EQ(tensor_->rank(), layout_.tensor_rank);
  OT_CHECK_EQ(tensor_->size(), layout_.tensor);
}

Mesh::Mesh(const Layout& layout)
    : layout_(layout),
      planned_world_(PlannedRank(layout.world_rank(), layout.world())),
      data_(PlannedRank(layout.data_rank, layout.data)),
      tensor_(PlannedRank(layout.tensor_rank, layout.tensor)) {
  world_ = planned_world_.get();
}

}  // namespace overtok

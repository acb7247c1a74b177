// The mesh of ranks, data x tensor: ranks of one tensor group share a replica of the model and have
// neighbouring world ranks, so that a group stays on a node; world rank = data rank * tensor +
// tensor rank. A group's own rank indexes shards, never the world's.
#pragma once

#include <memory>

#include "core/comm/communicator.h"
#include "core/sharding.h"

namespace overtok {

// Where a rank stands, in numbers only.
struct Layout {
  int data = 1, tensor = 1;
  int data_rank = 0, tensor_rank = 0;
  Split vocabulary = Split::kBlocks;  // rows of embedding and heads: kBlocks or kRows
  int world() const { return data * tensor; }
  int world_rank() const { return RankOf(data_rank, tensor_rank); }
  int RankOf(int of_data, int of_tensor) const { return of_data * tensor + of_tensor; }
  static Layout Of(int world, int world_rank, int tensor, Split vocabulary = Split::kBlocks);
};

// The layout and its groups. Collective to make.
class Mesh {
 public:
  // `world` must outlive the mesh; its size is a multiple of `tensor`.
  Mesh(Communicator* world, int tensor, Split vocabulary = Split::kBlocks);
  // Of a rank that only plans; layout of any size. Of one rank it can run.
  explicit Mesh(const Layout& layout = {});

  const Layout& layout() const { return layout_; }
  Communicator& world() const { return *world_; }
  Communicator& data() const { return *data_; }  // equal tensor rank, in the order of data ranks
  Communicator& tensor() const { return *tensor_; }  // equal data rank

 private:
  Layout layout_;
  Communicator* world_ = nullptr;
  std::unique_ptr<Communicator> planned_world_, data_, tensor_;
};

}  // namespace overtok

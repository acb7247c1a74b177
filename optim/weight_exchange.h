// WeightExchange: updated values travel from the owners of pieces to all ranks that hold them, in
// rounds, while later pieces are still being updated. Ranges go from and to the parameters' own
// tensors; only matrices that their owner holds a part of are packed, part by part, two rounds at
// most at once. On one rank there are no rounds.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/memory.h"
#include "optim/gradient_exchange.h"

namespace overtok {

class WeightExchange {
 public:
  // rounds: pieces of all ranks whose values travel together, the same on every rank; each piece
  // once. `owned`: TakeOwnedPieces of this rank.
  WeightExchange(const std::vector<std::vector<Piece>>& rounds,
                 const std::vector<OwnedPiece>& owned, const Mesh* mesh, Memory* memory);

  // This rank's pieces of the next round have their new values. From the first round on, values of
  // pieces of others may not be touched before Finish.
  void StartNext(const Context& context);
  // Starts the rounds that are left (in which this rank has nothing to send) and waits for all.
  void Finish(const Context& context);

 private:
  struct Pack {
    Region region;  // a part
    Tensor whole, packed;
  };
  struct Round {
    std::vector<Communicator::Message> sends, receives;
    std::vector<Pack> packs;
    Request request;
  };

  const Mesh* mesh_;
  std::vector<Round> rounds_;
  size_t started_ = 0;
};

}  // namespace overtok

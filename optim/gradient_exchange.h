// GradientExchange: gradients of dense parameters travel to the owners of their pieces while the
// backward pass still runs. Every holder sends its contiguous piece (nothing is packed), the owner
// adds them up by a fixed order: the tree of core/gradient_sum.h over the data ranks of one tensor
// rank, then tensor ranks that hold the same part in order. Pieces travel in buckets, two in flight
// at most; what is staged is bounded and taken before the run. No rank ever holds another whole
// gradient, except of matrices of MuonH that it owns while it holds only a part of them. On one
// rank there is nothing to do and nothing is taken. docs/optimizers.md.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/comm/mesh.h"
#include "core/context.h"
#include "core/gradient_sum.h"
#include "core/memory.h"
#include "core/parameter.h"
#include "optim/ownership.h"

namespace overtok {

// A piece as its owner sees it. `value` and `gradient` are views of the parameter's tensors, or,
// `copied`, tensors of their own: of a whole matrix of which this rank holds only a part.
struct OwnedPiece {
  Piece piece;
  Region region;
  Tensor value, gradient;  // f32, region.count elements
  bool copied = false;
};

// The pieces of rank `rank`, in the order of `pieces`; takes what is copied.
std::vector<OwnedPiece> TakeOwnedPieces(const std::vector<Piece>& pieces, int rank, Memory* memory);

// Elements [begin, begin + count) of a tensor; the tensor itself where that is all of it.
Tensor Elements(const Tensor& tensor, int64_t begin, int64_t count);

// Bytes that the rank of `layout` sends to others in one step, exactly.
struct StepTraffic {
  int64_t gradients = 0;  // of elements that it holds and others own
  int64_t weights = 0;    // of elements that it owns, once for every other holder
  int64_t control = 0;    // exact sums of the norms and of AdamH
};
StepTraffic TrafficOfStep(const std::vector<Piece>& pieces, const Layout& layout);

class GradientExchange {
 public:
  // `order`: dense parameters in the order in which their gradients become complete, the same on
  // all ranks. `owned`: TakeOwnedPieces of this rank.
  GradientExchange(const std::vector<Piece>& pieces, const std::vector<OwnedPiece>& owned,
                   const std::vector<Parameter*>& order, const Mesh* mesh, GradientOrder sums,
                   Memory* memory);

  // The gradient of `parameter` on this rank is complete: starts the buckets that now are.
  void Ready(const Context& context, const Parameter& parameter);
  // Waits for all of them; every parameter must have been named since the last call.
  void Finish(const Context& context);

 private:
  // The sum of one range of a part, at its owner.
  struct Join {
    std::vector<std::vector<Tensor>> replicas;  // contributions of each one's data ranks
    std::vector<Tensor> sums;                   // one of each replica's contributions
    Tensor out;                                 // one of `sums`
    Region region;
    Tensor whole;  // where the matrix is assembled; undefined: `out` is in its place
  };
  struct Bucket {
    size_t last = 0;  // the latest in `order` of its parameters
    std::vector<Communicator::Message> sends, receives;
    std::vector<Join> joins;
    Request request;
  };
  void AddToBucket(const Piece& range, const std::vector<OwnedPiece>& owned, const Tensor& staging,
                   int64_t* used, Bucket* bucket) const;
  void Complete(const Context& context, Bucket& bucket);

  const Mesh* mesh_;
  GradientOrder sums_;
  std::vector<const Parameter*> order_;
  std::vector<bool> ready_;  // by place in order_
  size_t ready_before_ = 0;  // all before this place are
  std::vector<Bucket> buckets_;
  size_t started_ = 0;
};

}  // namespace overtok

// TokenShards: the two layouts of activations in a tensor group: whole, every rank has all n tokens
// of a micro-batch, and shared out, every rank has n / T consecutive ones (sequence parallelism).
// Norms and the residual stream work on shares; attention, MLP and heads on whole tokens and a part
// of the weights. On one rank both are the same tensor and nothing is moved. docs/parallel.md.
#pragma once

#include <cstdint>
#include <vector>

#include "core/comm/communicator.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"

namespace overtok {

class TokenShards {
 public:
  // For micro-batches of `tokens` (a multiple of the group's size), rows of up to `width` elements
  // of `act`. `group` must outlive it.
  TokenShards(Communicator* group, int64_t tokens, int64_t width, DType act, Memory* memory);

  bool divided() const { return group_->size() > 1; }
  int64_t tokens() const { return tokens_; }                  // n
  int64_t share() const { return tokens_ / group_->size(); }  // n / T
  int64_t first() const {
    return share() * group_->rank();
  }  // token where this rank's share begins
  int64_t ranks() const { return group_->size(); }

  // whole: [n, e] from every rank's share: [n / T, e].
  void Gather(const Context& context, const Tensor& share, const Tensor& whole) const;
  // share: [n / T, e], the sum over ranks, in their order, of these rows of whole: [n, e].
  void SumShares(const Context& context, const Tensor& whole, const Tensor& share) const;

 private:
  Communicator* group_;
  int64_t tokens_;
  Tensor staging_;  // [T - 1, n / T, width]: what other ranks add
};

}  // namespace overtok

#include "model/token_shards.h"

#include <array>
#include <span>

#include "core/ops/ordered_sum.h"

namespace overtok {
namespace {

constexpr int kMostRanks = 64;

}  // namespace

TokenShards::TokenShards(Communicator* group, int64_t tokens, int64_t width, DType act,
                         Memory* memory)
    : group_(group), tokens_(tokens) {
  const int64_t ranks = group->size();
  OT_CHECK_EQ(tokens % ranks, 0);
  OT_CHECK_LE(ranks, kMostRanks);
  if (ranks > 1) {
    staging_ = memory->Take(Purpose::kActivations, "token_shards", act,
                            {(ranks - 1) * tokens / ranks * width});
  }
}

void TokenShards::Gather(const Context& /*context*/, const Tensor& share,
                         const Tensor& whole) const {
  if (!divided()) {
    OT_CHECK(share.raw() == whole.raw());
    return;
  }
  OT_CHECK(share.dim(0) == this->share() && whole.dim(0) == tokens_);
  group_->AllGather(share, whole, Traffic::kActivations);
}

void TokenShards::SumShares(const Context& context, const Tensor& whole,
                            const Tensor& share) const {
  if (!divided()) {
    OT_CHECK(share.raw() == whole.raw());
    return;
  }
  const int ranks = group_->size();
  const int64_t rows = this->share(), width = whole.dim(1);
  OT_CHECK(share.dim(0) == rows && whole.dim(0) == tokens_ && share.dim(1) == width);
  std::array<Communicator::Message, kMostRanks> sends, receives;
  std::array<Tensor, kMostRanks> parts;
  size_t messages = 0;
  for (int r = 0; r < ranks; ++r) {
    const auto part = static_cast<size_t>(r);
    parts[part] = whole.Rows(r * rows, rows);
    if (r == group_->rank()) continue;
    sends[messages] = {r, parts[part]};
    const Tensor place = staging_.Rows(static_cast<int64_t>(messages) * rows * width, rows * width);
    parts[part] = place.Reshape({rows, width});
    receives[messages] = {r, parts[part]};
    ++messages;
  }
  group_->Exchange(std::span(sends).first(messages), std::span(receives).first(messages),
                   Traffic::kActivations);
  OrderedSum(context, {std::span<const Tensor>(parts).first(static_cast<size_t>(ranks)), share});
}

}  // namespace overtok

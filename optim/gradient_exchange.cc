#include "optim/gradient_exchange.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/exact_sum.h"
#include "core/ops/blocks.h"
#include "core/ops/copy_region.h"
#include "core/ops/ordered_sum.h"

namespace overtok {
namespace {

// A bucket is closed when it covers this much of a rank's gradient, on average over ranks, or when
// one owner gets this much to stage: large enough for full bandwidth, small enough that the last
// one is soon done after the backward pass.
constexpr int64_t kBucketBytes = int64_t{4} << 20;
constexpr int64_t kStagedBytes = int64_t{16} << 20;
constexpr int64_t kElementBytes = 4;

int64_t StagedBytes(const Piece& range, const Layout& layout, int rank) {
  int64_t others = 0;
  for (const int holder : HoldersOf(*range.parameter, range.part, layout))
    others += holder != rank ? 1 : 0;
  return rank == range.owner ? others * range.count * kElementBytes : 0;
}

// What a range adds to a rank's share of a bucket.
int64_t HeldBytes(const Piece& range, const Layout& layout) {
  const Parameter& parameter = *range.parameter;
  return range.count * kElementBytes * parameter.replicas / layout.tensor;
}

// Ranges of parts by buckets: the same on every rank. A parameter that is too large for one is cut
// in rounds; each round has a share of every owner's piece, so that all owners receive at once.
struct PlannedBucket {
  size_t last = 0;
  std::vector<Piece> ranges;
};

class BucketPlanner {
 public:
  explicit BucketPlanner(const Layout& layout)
      : layout_(layout), staged_(static_cast<size_t>(layout.world()), 0) {}

  void Add(size_t place, const std::vector<Piece>& parts) {
    int64_t bytes = 0, most = 0;
    std::vector<int64_t> staged(staged_.size(), 0);
    for (const Piece& part : parts) {
      bytes += HeldBytes(part, layout_);
      int64_t& owner = staged[static_cast<size_t>(part.owner)];
      owner += StagedBytes(part, layout_, part.owner);
      most = std::max(most, owner);
    }
    const int64_t rounds = std::max<int64_t>(
        {1, (bytes + kBucketBytes - 1) / kBucketBytes, (most + kStagedBytes - 1) / kStagedBytes});
    for (int64_t round = 0; round < rounds; ++round) {
      for (const Piece& part : parts) AddShare(part, round, rounds);
      current_.last = place;
      if (bytes_ >= kBucketBytes ||
          *std::max_element(staged_.begin(), staged_.end()) >= kStagedBytes)
        Close();
    }
  }
  std::vector<PlannedBucket> Finish() {
    Close();
    return std::move(buckets_);
  }

 private:
  void AddShare(const Piece& part, int64_t round, int64_t rounds) {
    const int64_t blocks = ElementBlocks(part.count);
    const int64_t begin = blocks * round / rounds * kBlockElements;
    const int64_t end = std::min(part.count, blocks * (round + 1) / rounds * kBlockElements);
    if (begin >= end) return;
    Piece share = part;
    share.begin += begin;
    share.count = end - begin;
    current_.ranges.push_back(share);
    bytes_ += HeldBytes(share, layout_);
    staged_[static_cast<size_t>(share.owner)] += StagedBytes(share, layout_, share.owner);
  }
  void Close() {
    if (!current_.ranges.empty()) buckets_.push_back(std::move(current_));
    current_ = PlannedBucket();
    bytes_ = 0;
    std::fill(staged_.begin(), staged_.end(), 0);
  }

  const Layout layout_;
  std::vector<PlannedBucket> buckets_;
  PlannedBucket current_;
  int64_t bytes_ = 0;
  std::vector<int64_t> staged_;  // of current_, by owner
};

}  // namespace

Tensor Elements(const Tensor& tensor, int64_t begin, int64_t count) {
  if (begin == 0 && count == tensor.elements()) return tensor;
  return tensor.Reshape({tensor.elements()}).Rows(begin, count);
}

std::vector<OwnedPiece> TakeOwnedPieces(const std::vector<Piece>& pieces, int rank,
                                        Memory* memory) {
  std::vector<OwnedPiece> owned;
  for (const Piece& piece : pieces) {
    if (piece.owner != rank) continue;
    const Parameter& parameter = *piece.parameter;
    OwnedPiece mine{piece, RegionOf(piece), Tensor(), Tensor()};
    mine.copied = piece.part < 0 && parameter.sharding.parts > 1;
    if (mine.copied) {
      const auto take = [&](const char* what) {
        return memory->Take(Purpose::kOptimizer, absl::StrCat(what, parameter.spec.name),
                            DType::kF32, parameter.spec.shape);
      };
      mine.value = take("master/");
      mine.gradient = take("gradient/");
    } else {
      mine.value = Elements(parameter.value, piece.begin, piece.count);
      mine.gradient = Elements(parameter.gradient, piece.begin, piece.count);
    }
    owned.push_back(mine);
  }
  return owned;
}

StepTraffic TrafficOfStep(const std::vector<Piece>& pieces, const Layout& layout) {
  StepTraffic traffic;
  const int rank = layout.world_rank();
  int64_t heads = 0;
  const Parameter* head = nullptr;
  for (const Piece& piece : pieces) {
    if (piece.parameter->spec.group == OptimizerGroup::kAdamH && piece.parameter != head) {
      head = piece.parameter;
      ++heads;
    }
    for (const Piece& part : PartsOf(piece)) {
      const std::vector<int> holders = HoldersOf(*part.parameter, part.part, layout);
      const bool held = std::find(holders.begin(), holders.end(), rank) != holders.end();
      if (held && part.owner != rank) traffic.gradients += part.count * kElementBytes;
      // What the owner of a part of a matrix does not hold itself it sends to all who do.
      traffic.weights += StagedBytes(part, layout, rank);
    }
  }
  const int64_t sums = kOptimizerGroups + 1 + kBlockSums * heads;  // 1: of the losses
  traffic.control = (layout.world() - 1) * sums * ExactSum::kWords * SizeOf(DType::kI64);
  return traffic;
}

GradientExchange::GradientExchange(const std::vector<Piece>& pieces,
                                   const std::vector<OwnedPiece>& owned,
                                   const std::vector<Parameter*>& order, const Mesh* mesh,
                                   GradientOrder sums, Memory* memory)
    : mesh_(mesh), sums_(sums), order_(order.begin(), order.end()), ready_(order.size(), false) {
  const Layout& layout = mesh->layout();
  std::vector<std::vector<Piece>> parts(order.size());
  for (const Piece& piece : pieces) {
    const auto found = std::find(order.begin(), order.end(), piece.parameter);
    OT_CHECK(found != order.end()) << piece.parameter->spec.name << " has no place in the order";
    for (const Piece& part : PartsOf(piece))
      parts[static_cast<size_t>(found - order.begin())].push_back(part);
  }
  if (layout.world() == 1) return;
  BucketPlanner planner(layout);
  for (size_t place = 0; place < parts.size(); ++place) {
    OT_CHECK(!order[place]->is_table()) << order[place]->spec.name << " has no dense gradient";
    planner.Add(place, parts[place]);
  }
  const std::vector<PlannedBucket> planned = planner.Finish();
  // Buckets in flight at once lie beside each other: the even and the odd ones.
  std::array<int64_t, 2> most{};
  for (size_t b = 0; b < planned.size(); ++b) {
    int64_t bytes = 0;
    for (const Piece& range : planned[b].ranges)
      bytes += StagedBytes(range, layout, layout.world_rank());
    most[b % 2] = std::max(most[b % 2], bytes);
  }
  std::array<Tensor, 2> staging;
  for (size_t i = 0; i < 2; ++i) {
    staging[i] = memory->Take(Purpose::kGradients, absl::StrCat("gradient_exchange.", i),
                              DType::kF32, {most[i] / kElementBytes});
  }
  for (size_t b = 0; b < planned.size(); ++b) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.last = planned[b].last;
    int64_t used = 0;
    for (const Piece& range : planned[b].ranges)
      AddToBucket(range, owned, staging[b % 2], &used, &bucket);
  }
}

void GradientExchange::AddToBucket(const Piece& range, const std::vector<OwnedPiece>& owned,
                                   const Tensor& staging, int64_t* used, Bucket* bucket) const {
  const Layout& layout = mesh_->layout();
  const int rank = layout.world_rank();
  const Parameter& parameter = *range.parameter;
  const std::vector<int> holders = HoldersOf(parameter, range.part, layout);
  Tensor mine;
  if (std::find(holders.begin(), holders.end(), rank) != holders.end())
    mine = Elements(parameter.gradient, range.begin, range.count);
  if (range.owner != rank) {
    if (mine.defined()) bucket->sends.push_back({range.owner, mine});
    return;
  }
  Join join;
  for (size_t h = 0; h < holders.size(); ++h) {
    if (h % static_cast<size_t>(layout.data) == 0) {
      join.replicas.emplace_back();
      join.sums.emplace_back();
    }
    Tensor contribution = mine;
    if (holders[h] != rank) {
      contribution = staging.Rows(*used, range.count);
      *used += range.count;
      bucket->receives.push_back({holders[h], contribution});
    }
    join.replicas.back().push_back(contribution);
    // The sum ends where this rank's own gradient lies, where it has one.
    if (!join.sums.back().defined() || holders[h] == rank) join.sums.back() = contribution;
    if (!join.out.defined() || holders[h] == rank) join.out = contribution;
  }
  const auto piece = std::find_if(owned.begin(), owned.end(), [&](const OwnedPiece& candidate) {
    return candidate.piece.parameter == range.parameter;  // one at most of each parameter
  });
  OT_CHECK(piece != owned.end());
  if (piece->copied) {
    join.region = RegionOf(parameter, range.part, range.begin, range.count);
    join.whole = piece->gradient;
  }
  bucket->joins.push_back(std::move(join));
}

void GradientExchange::Ready(const Context& context, const Parameter& parameter) {
  if (buckets_.empty()) return;
  const auto found = std::find(order_.begin(), order_.end(), &parameter);
  OT_CHECK(found != order_.end()) << parameter.spec.name << " has no place in the order";
  const auto place = static_cast<size_t>(found - order_.begin());
  OT_CHECK(!ready_[place]) << parameter.spec.name << " was complete before";
  ready_[place] = true;
  while (ready_before_ < ready_.size() && ready_[ready_before_]) ++ready_before_;
  while (started_ < buckets_.size() && buckets_[started_].last < ready_before_) {
    if (started_ >= 2) Complete(context, buckets_[started_ - 2]);
    Bucket& bucket = buckets_[started_++];
    bucket.request =
        mesh_->world().StartExchange(bucket.sends, bucket.receives, Traffic::kGradients);
  }
}

void GradientExchange::Finish(const Context& context) {
  if (buckets_.empty()) return;
  OT_CHECK_EQ(ready_before_, order_.size()) << "some gradient was never complete";
  OT_CHECK_EQ(started_, buckets_.size());
  for (size_t b = started_ >= 2 ? started_ - 2 : 0; b < started_; ++b)
    Complete(context, buckets_[b]);
  started_ = ready_before_ = 0;
  std::fill(ready_.begin(), ready_.end(), false);
}

void GradientExchange::Complete(const Context& context, Bucket& bucket) {
  bucket.request.Wait();
  const auto order = sums_ == GradientOrder::kTree ? OrderedSumArgs::Order::kTree
                                                   : OrderedSumArgs::Order::kInOrder;
  for (const Join& join : bucket.joins) {
    for (size_t r = 0; r < join.replicas.size(); ++r) {
      if (join.replicas[r].size() > 1)
        OrderedSum(context, {.parts = join.replicas[r], .out = join.sums[r], .order = order});
    }
    if (join.sums.size() > 1) OrderedSum(context, {.parts = join.sums, .out = join.out});
    if (join.whole.defined()) {
      CopyRegion(context, {.region = join.region,
                           .whole = join.whole,
                           .packed = join.out,
                           .to = CopyRegionArgs::To::kWhole});
    }
  }
}

}  // namespace overtok

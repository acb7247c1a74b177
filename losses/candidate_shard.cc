#include "losses/candidate_shard.h"

#include <algorithm>

#include "core/ops/embedding.h"

namespace overtok {
namespace {

// The part and the place in it of ascending classes: asks once for a stretch of classes that lie
// together.
class Places {
 public:
  Places(const Sharding& sharding, int64_t classes) : sharding_(sharding), classes_(classes) {}
  void Move(int64_t id) {
    if (id >= end_) {
      part_ = PartOf(sharding_, classes_, id);
      shift_ = LocalOf(sharding_, classes_, id) - id;
      end_ = (id / kShardBlock + 1) * kShardBlock;
      if (sharding_.split == Split::kRows) {
        Sharding holder = sharding_;
        holder.part = part_;
        end_ = GlobalOf(holder, classes_, 0) + SizeOfPart(holder, classes_);
      } else if (sharding_.split == Split::kWhole) {
        end_ = classes_;
      }
    }
    place_ = id + shift_;
  }
  int64_t part() const { return part_; }
  int64_t place() const { return place_; }

 private:
  Sharding sharding_;
  int64_t classes_;
  int64_t part_ = 0, shift_ = 0, end_ = 0, place_ = 0;
};

}  // namespace

CandidateShares::CandidateShares(const Sharding& sharding, int64_t classes, int64_t labels,
                                 int64_t blocks, int64_t most, Memory* memory)
    : sharding_(sharding), classes_(classes), counts_(static_cast<size_t>(sharding.parts)) {
  OT_CHECK(sharding.split != Split::kColumns) << "classes are rows";
  OT_CHECK(sharding.split != Split::kWhole || sharding.parts == 1);
  OT_CHECK(sharding.part >= 0 && sharding.part < sharding.parts);
  shares_.reserve(static_cast<size_t>(blocks));
  if (sharding.parts == 1) return;
  const int64_t own = std::min(most, SizeOfPart(sharding, classes));
  ids_ = memory->TakeInput(Purpose::kBatches, "candidates.share.ids", DType::kU32, {blocks, own});
  rows_ = memory->TakeInput(Purpose::kBatches, "candidates.share.rows", DType::kU32, {blocks, own});
  bias_ = memory->TakeInput(Purpose::kBatches, "candidates.share.bias", DType::kF32, {blocks, own});
  places_ = memory->TakeHost(Purpose::kBatches, "candidates.share.places", DType::kU32, {most});
  own_targets_ =
      memory->TakeInput(Purpose::kBatches, "candidates.share.targets", DType::kU32, {labels});
}

void CandidateShares::Build(const CandidateSets& sets, std::span<const uint32_t> labels) {
  const auto count = static_cast<int64_t>(labels.size());
  const auto blocks = static_cast<int64_t>(sets.sets().size());
  OT_CHECK(blocks > 0 && count % blocks == 0 && count <= sets.ranks().dim(0));
  shares_.clear();
  if (sharding_.parts == 1) {
    for (const CandidateSet& set : sets.sets()) {
      shares_.push_back({.ids = set.ids,
                         .rows = set.ids,
                         .bias = set.bias,
                         .most = set.overflow ? classes_ : set.ids.elements()});
    }
    targets_ = sets.ranks().Rows(0, count);
    return;
  }
  targets_ = own_targets_.Rows(0, count);
  auto* targets = targets_.data<uint32_t>();
  const auto* ranks = sets.ranks().data<uint32_t>();
  const int64_t block_labels = count / blocks;
  for (int64_t b = 0; b < blocks; ++b) {
    const CandidateSet& set = sets.sets()[static_cast<size_t>(b)];
    shares_.push_back(ShareOf(set, b));
    const uint32_t* places = places_.data<uint32_t>();
    for (int64_t i = b * block_labels; i < (b + 1) * block_labels; ++i) {
      if (!set.overflow) {
        targets[i] = places[ranks[i]];
        continue;
      }
      const auto label = static_cast<int64_t>(labels[static_cast<size_t>(i)]);
      targets[i] = PartOf(sharding_, classes_, label) == sharding_.part
                       ? static_cast<uint32_t>(LocalOf(sharding_, classes_, label))
                       : kNoRow;
    }
  }
}

CandidateShare CandidateShares::ShareOf(const CandidateSet& set, int64_t block) {
  CandidateShare share;
  if (set.overflow) {
    share.most = LargestPart(sharding_, classes_);
    return share;
  }
  const auto row = [&](const Tensor& x) { return x.Rows(block, 1).Reshape({x.dim(1)}); };
  const auto* from = set.ids.data<uint32_t>();
  const float* from_bias = set.bias.defined() ? set.bias.data<float>() : nullptr;
  auto* ids = row(ids_).data<uint32_t>();
  auto* rows = row(rows_).data<uint32_t>();
  auto* bias = row(bias_).data<float>();
  auto* places = places_.data<uint32_t>();
  std::fill(counts_.begin(), counts_.end(), 0);
  Places at(sharding_, classes_);
  int64_t own = 0;
  for (int64_t i = 0; i < set.ids.elements(); ++i) {
    at.Move(from[i]);
    ++counts_[static_cast<size_t>(at.part())];
    places[i] = kNoRow;
    if (at.part() != sharding_.part) continue;
    ids[own] = from[i];
    rows[own] = static_cast<uint32_t>(at.place());
    if (from_bias != nullptr) bias[own] = from_bias[i];
    places[i] = static_cast<uint32_t>(own++);
  }
  share.ids = row(ids_).Rows(0, own);
  share.rows = row(rows_).Rows(0, own);
  if (from_bias != nullptr) share.bias = row(bias_).Rows(0, own);
  share.most = *std::max_element(counts_.begin(), counts_.end());
  return share;
}

double BusiestShare(const CandidateSets& sets, const Sharding& sharding, int64_t classes) {
  double busiest = 0, all = 0;
  std::vector<int64_t> counts(static_cast<size_t>(sharding.parts));
  for (const CandidateSet& set : sets.sets()) {
    if (set.overflow) {
      busiest += static_cast<double>(LargestPart(sharding, classes));
      all += static_cast<double>(classes);
      continue;
    }
    std::fill(counts.begin(), counts.end(), 0);
    Places at(sharding, classes);
    const auto* ids = set.ids.data<uint32_t>();
    for (int64_t i = 0; i < set.ids.elements(); ++i) {
      at.Move(ids[i]);
      ++counts[static_cast<size_t>(at.part())];
    }
    busiest += static_cast<double>(*std::max_element(counts.begin(), counts.end()));
    all += static_cast<double>(set.ids.elements());
  }
  return busiest * static_cast<double>(sharding.parts) / all;
}

double BusiestShare(std::span<const uint32_t> labels, int64_t blocks, int64_t candidates,
                    const CandidateOptions& options, const Sharding& sharding) {
  Memory memory(Memory::Mode::kReal);
  CandidateSets sets(options, static_cast<int64_t>(labels.size()), blocks, candidates, &memory);
  sets.Build(labels, candidates, /*step=*/0);
  return BusiestShare(sets, sharding, options.classes);
}

}  // namespace overtok

#include "optim/weight_exchange.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "core/check.h"
#include "core/ops/copy_region.h"

namespace overtok {
namespace {

bool Holds(const Piece& part, const Layout& layout) {
  const std::vector<int> holders = HoldersOf(*part.parameter, part.part, layout);
  return std::find(holders.begin(), holders.end(), layout.world_rank()) != holders.end();
}

}  // namespace

WeightExchange::WeightExchange(const std::vector<std::vector<Piece>>& rounds,
                               const std::vector<OwnedPiece>& owned, const Mesh* mesh,
                               Memory* memory)
    : mesh_(mesh) {
  const Layout& layout = mesh->layout();
  const int rank = layout.world_rank();
  if (layout.world() == 1) return;
  // Parts of matrices that this rank owns and does not hold: packed beside its parameters.
  const auto foreign = [&](const Piece& part) {
    return part.owner == rank && !Holds(part, layout);
  };
  std::array<int64_t, 2> most{};
  for (size_t r = 0; r < rounds.size(); ++r) {
    int64_t elements = 0;
    for (const Piece& piece : rounds[r]) {
      for (const Piece& part : PartsOf(piece)) elements += foreign(part) ? part.count : 0;
    }
    most[r % 2] = std::max(most[r % 2], elements);
  }
  std::array<Tensor, 2> staging;
  for (size_t i = 0; i < 2; ++i) {
    staging[i] = memory->Take(Purpose::kOptimizer, absl::StrCat("weight_exchange.", i), DType::kF32,
                              {most[i]});
  }
  for (size_t r = 0; r < rounds.size(); ++r) {
    Round& round = rounds_.emplace_back();
    int64_t used = 0;
    for (const Piece& piece : rounds[r]) {
      const auto mine = std::find_if(owned.begin(), owned.end(), [&](const OwnedPiece& candidate) {
        return candidate.piece.parameter == piece.parameter;
      });
      for (const Piece& part : PartsOf(piece)) {
        const Parameter& parameter = *part.parameter;
        Tensor values;
        if (Holds(part, layout)) values = Elements(parameter.value, part.begin, part.count);
        if (part.owner != rank) {
          if (values.defined()) round.receives.push_back({part.owner, values});
          continue;
        }
        if (!values.defined()) {
          values = staging[r % 2].Rows(used, part.count);
          used += part.count;
        }
        OT_CHECK(mine != owned.end());
        if (mine->copied)
          round.packs.push_back({RegionOf(parameter, part.part), mine->value, values});
        for (const int holder : HoldersOf(parameter, part.part, layout)) {
          if (holder != rank) round.sends.push_back({holder, values});
        }
      }
    }
  }
}

void WeightExchange::StartNext(const Context& context) {
  if (rounds_.empty()) return;
  OT_CHECK_LT(started_, rounds_.size());
  if (started_ >= 2) rounds_[started_ - 2].request.Wait();
  Round& round = rounds_[started_++];
  for (const Pack& pack : round.packs) {
    CopyRegion(context, {.region = pack.region,
                         .whole = pack.whole,
                         .packed = pack.packed,
                         .to = CopyRegionArgs::To::kPacked});
  }
  round.request = mesh_->world().StartExchange(round.sends, round.receives, Traffic::kWeights);
}

void WeightExchange::Finish(const Context& context) {
  while (started_ < rounds_.size()) StartNext(context);
  for (Round& round : rounds_) round.request.Wait();
  started_ = 0;
}

}  // namespace overtok

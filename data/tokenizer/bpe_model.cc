// Merging of one piece. Up to kShortPiece symbols a scan over an array on the stack is fastest;
// above, a linked list with a heap of candidate pairs keeps the time at O(n log n), so that a
// 100 kB run of "=" costs milliseconds instead of minutes.
#include "data/tokenizer/bpe_model.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "core/check.h"

namespace overtok {
namespace {

constexpr size_t kShortPiece = 64;

}  // namespace

BpeModel::BpeModel(const BpeDefinition& definition) {
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    if (token.size() == 1) byte_ids_[static_cast<uint8_t>(token[0])] = static_cast<uint32_t>(id);
    if (definition.ignore_merges && token.size() > 1) {
      whole_pieces_.emplace(token, static_cast<uint32_t>(id));
    }
  }
  const uint64_t slots = std::bit_ceil(std::max<uint64_t>(64, definition.merges.size() * 2));
  mask_ = slots - 1;
  shift_ = 64 - std::countr_zero(slots);
  slots_.assign(slots, Slot{0, kNoRank, 0});
  for (const BpeMerge& merge : definition.merges) {
    OT_CHECK(merge.rank != kNoRank);
    const uint64_t pair = uint64_t{merge.left} << 32 | merge.right;
    uint64_t at = Place(pair);
    while (slots_[at].rank != kNoRank && slots_[at].pair != pair) at = (at + 1) & mask_;
    // A pair that is listed twice counts at its later rank, as in Hugging Face's reader.
    slots_[at] = Slot{pair, merge.rank, merge.result};
  }
}

void BpeModel::EncodePiece(absl::string_view piece, std::vector<uint32_t>* ids) const {
  if (piece.size() == 1) {
    ids->push_back(byte_ids_[static_cast<uint8_t>(piece[0])]);
    return;
  }
  if (!whole_pieces_.empty()) {
    const auto it = whole_pieces_.find(piece);
    if (it != whole_pieces_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  if (piece.size() <= kShortPiece) {
    MergeShort(piece, ids);
  } else {
    MergeLong(piece, ids);
  }
}

void BpeModel::MergeShort(absl::string_view piece, std::vector<uint32_t>* ids) const {
  uint32_t symbols[kShortPiece];
  uint32_t ranks[kShortPiece];    // of the pair (i, i + 1)
  uint32_t results[kShortPiece];  // what that pair becomes
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[static_cast<uint8_t>(piece[i])];
  const auto look_up = [&](size_t i) {
    const Slot& slot = Find(symbols[i], symbols[i + 1]);
    ranks[i] = slot.rank;
    results[i] = slot.result;
  };
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoRank) break;
    symbols[best] = results[best];
    for (size_t i = best + 1; i + 1 < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 2 < count; ++i) {
      ranks[i] = ranks[i + 1];
      results[i] = results[i + 1];
    }
    --count;
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids->insert(ids->end(), symbols, symbols + count);
}

void BpeModel::MergeLong(absl::string_view piece, std::vector<uint32_t>* ids) const {
  constexpr uint32_t kEnd = 0xFFFFFFFFu;
  OT_CHECK(piece.size() < kEnd) << "piece of " << piece.size() << " bytes";
  struct Symbol {
    uint32_t id, previous, next;
    bool alive;
  };
  const uint32_t count = static_cast<uint32_t>(piece.size());
  std::vector<Symbol> symbols(count);
  // Lowest rank first, then leftmost: both in one number.
  std::vector<uint64_t> candidates;
  candidates.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    symbols[i] = Symbol{byte_ids_[static_cast<uint8_t>(piece[i])], i == 0 ? kEnd : i - 1,
                        i + 1 == count ? kEnd : i + 1, true};
  }
  for (uint32_t i = 0; i + 1 < count; ++i) {
    const uint32_t rank = Find(symbols[i].id, symbols[i + 1].id).rank;
    if (rank != kNoRank) candidates.push_back(uint64_t{rank} << 32 | i);
  }
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> heap(std::greater<>(),
                                                                            std::move(candidates));
  const auto offer = [&](uint32_t i) {
    const uint32_t rank = Find(symbols[i].id, symbols[symbols[i].next].id).rank;
    if (rank != kNoRank) heap.push(uint64_t{rank} << 32 | i);
  };
  while (!heap.empty()) {
    const uint64_t top = heap.top();
    heap.pop();
    const uint32_t i = static_cast<uint32_t>(top & 0xFFFFFFFFu);
    Symbol& symbol = symbols[i];
    // Entries are not taken out when a neighbour changes; one that no longer describes its place
    // is skipped here.
    if (!symbol.alive || symbol.next == kEnd) continue;
    Symbol& right = symbols[symbol.next];
    const Slot& slot = Find(symbol.id, right.id);
    if (slot.rank != static_cast<uint32_t>(top >> 32)) continue;
    symbol.id = slot.result;
    right.alive = false;
    symbol.next = right.next;
    if (symbol.next != kEnd) {
      symbols[symbol.next].previous = i;
      offer(i);
    }
    if (symbol.previous != kEnd) offer(symbol.previous);
  }
  for (uint32_t i = 0; i != kEnd; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace overtok

// Byte-pair merging of one piece of text: bytes in, token ids out. Holds the merges as one flat
// hash table from a pair of ids to (rank, result); strings are gone after construction except for
// the whole-piece table of vocabularies that ask for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "data/tokenizer/bpe_definition.h"

namespace overtok {

class BpeModel {
 public:
  // `definition` has passed FinishDefinition and outlives the model.
  explicit BpeModel(const BpeDefinition& definition);

  // Appends the ids of `piece` (not empty, below 4 GiB): the lowest-ranked adjacent pair merges
  // first, the leftmost one among equals, until no pair is left. Time O(n log n), for short pieces
  // O(n^2) with a small constant. Thread-safe.
  void EncodePiece(absl::string_view piece, std::vector<uint32_t>* ids) const;

  uint32_t byte_id(uint8_t byte) const { return byte_ids_[byte]; }

 private:
  struct Slot {
    uint64_t pair;
    uint32_t rank;
    uint32_t result;
  };

  // The slot of a pair, or one with rank kNoRank.
  const Slot& Find(uint32_t left, uint32_t right) const {
    const uint64_t pair = uint64_t{left} << 32 | right;
    uint64_t at = Place(pair);
    while (slots_[at].rank != kNoRank && slots_[at].pair != pair) at = (at + 1) & mask_;
    return slots_[at];
  }
  uint64_t Place(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }
  void MergeShort(absl::string_view piece, std::vector<uint32_t>* ids) const;
  void MergeLong(absl::string_view piece, std::vector<uint32_t>* ids) const;

  static constexpr uint32_t kNoRank = 0xFFFFFFFFu;

  std::array<uint32_t, 256> byte_ids_{};
  std::vector<Slot> slots_;  // open addressing, at most half full
  uint64_t mask_ = 0;
  int shift_ = 0;
  // Filled only with ignore_merges; views into the definition's tokens.
  absl::flat_hash_map<absl::string_view, uint32_t> whole_pieces_;
};

}  // namespace overtok

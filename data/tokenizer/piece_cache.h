// Remembers the ids of short pieces of text. One cache per thread and tokenizer, direct-mapped, so
// a lookup is one hash and one cache line and nothing is shared or locked.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/string_view.h"

namespace overtok {

class PieceCache {
 public:
  static constexpr size_t kMaxBytes = 26;
  static constexpr size_t kMaxIds = 7;

  // One cache line.
  struct Entry {
    uint64_t tag = 0;    // hash of the piece
    uint8_t length = 0;  // bytes; 0: empty entry
    uint8_t count = 0;   // ids
    char bytes[kMaxBytes];
    uint32_t ids[kMaxIds];
  };

  PieceCache() : entries_(kEntries) {}

  // The cache of the calling thread for the tokenizer numbered `owner` (never reused in a process).
  // A thread keeps the caches of the few tokenizers it used last.
  static PieceCache& OfThread(uint64_t owner);

  // `piece` has 1 to kMaxBytes bytes. The entry where it belongs; `*hit` says whether it holds it.
  Entry& Find(absl::string_view piece, bool* hit) {
    const uint64_t tag = Hash(piece);
    Entry& entry = entries_[tag >> (64 - kEntryBits)];
    *hit = entry.tag == tag && entry.length == piece.size() &&
           std::memcmp(entry.bytes, piece.data(), piece.size()) == 0;
    return entry;
  }

  static void Store(absl::string_view piece, const uint32_t* ids, size_t count, Entry* entry) {
    entry->tag = Hash(piece);
    entry->length = static_cast<uint8_t>(piece.size());
    entry->count = static_cast<uint8_t>(count);
    std::memcpy(entry->bytes, piece.data(), piece.size());
    std::memcpy(entry->ids, ids, count * sizeof(uint32_t));
  }

 private:
  static constexpr int kEntryBits = 15;
  static constexpr size_t kEntries = size_t{1} << kEntryBits;

  static uint64_t Load(const char* p, size_t bytes) {
    uint64_t value = 0;
    std::memcpy(&value, p, bytes);
    return value;
  }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9E3779B97F4A7C15u;
    return a ^ (a >> 32);
  }
  static uint64_t Hash(absl::string_view piece) {
    const char* p = piece.data();
    const size_t n = piece.size();
    uint64_t h = n * 0xD6E8FEB86659FD93u;
    if (n >= 8) {
      for (size_t i = 0; i + 8 < n; i += 8) h = Mix(h, Load(p + i, 8));
      h = Mix(h, Load(p + n - 8, 8));
    } else if (n >= 4) {
      h = Mix(h, Load(p, 4) | Load(p + n - 4, 4) << 32);
    } else {
      h = Mix(h, Load(p, 1) | Load(p + n / 2, 1) << 8 | Load(p + n - 1, 1) << 16);
    }
    return Mix(h, 0xA0761D6478BD642Fu);
  }

  std::vector<Entry> entries_;
};

}  // namespace overtok

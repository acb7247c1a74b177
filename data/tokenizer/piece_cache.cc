#include "data/tokenizer/piece_cache.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace overtok {
namespace {

// A cache is about 2 MiB; a thread that goes through many tokenizers keeps this many.
constexpr size_t kCachesPerThread = 4;

}  // namespace

PieceCache& PieceCache::OfThread(uint64_t owner) {
  using Owned = std::pair<uint64_t, std::unique_ptr<PieceCache>>;
  thread_local std::vector<Owned> caches;  // last used first
  const auto it = std::find_if(caches.begin(), caches.end(),
                               [owner](const Owned& cache) { return cache.first == owner; });
  if (it == caches.end()) {
    if (caches.size() == kCachesPerThread) caches.pop_back();
    caches.emplace(caches.begin(), owner, std::make_unique<PieceCache>());
  } else if (it != caches.begin()) {
    std::rotate(caches.begin(), it, it + 1);
  }
  return *caches.front().second;
}

}  // namespace overtok

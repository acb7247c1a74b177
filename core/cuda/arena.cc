#include "core/cuda/arena.h"

#include <algorithm>

#include "core/check.h"

namespace overtok::cuda {
namespace {

int64_t RoundUp(int64_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}
void* Pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

}  // namespace

Arena::~Arena() {
  for (const auto& [begin, bytes] : chunks_) give_(Pointer(begin));
}

void* Arena::Allocate(int64_t bytes) {
  OT_CHECK_LT(0, bytes);
  const int64_t size = RoundUp(bytes);
  auto hole = std::find_if(holes_.begin(), holes_.end(),
                           [size](const auto& span) { return span.second >= size; });
  if (hole == holes_.end()) {
    int64_t chunk = std::max(size, kChunk);
    void* data = take_(chunk);
    if (data == nullptr && chunk > size) data = take_(chunk = size);
    if (data == nullptr) return nullptr;
    OT_CHECK_EQ(reinterpret_cast<uintptr_t>(data) % kAlignment, 0U);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    chunks_[begin] = chunk;
    chunk_bytes_ += chunk;
    free_bytes_ += chunk;
    hole = holes_.emplace(begin, chunk).first;
  }
  const auto [begin, room] = *hole;
  holes_.erase(hole);
  if (room > size) holes_[begin + static_cast<uintptr_t>(size)] = room - size;
  free_bytes_ -= size;
  return Pointer(begin);
}

void Arena::Free(void* data, int64_t bytes) {
  uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  int64_t size = RoundUp(bytes);
  const auto chunk = ChunkOf(begin);
  OT_CHECK(chunk != chunks_.end()) << "freed what is no piece of the device's memory";
  const uintptr_t chunk_end = chunk->first + static_cast<uintptr_t>(chunk->second);
  OT_CHECK_LE(begin + static_cast<uintptr_t>(size), chunk_end);
  free_bytes_ += size;
  // Holes before and behind become one with it, within the chunk.
  auto next = holes_.lower_bound(begin);
  OT_CHECK(next == holes_.end() || begin + static_cast<uintptr_t>(size) <= next->first)
      << "freed twice";
  if (next != holes_.end() && next->first == begin + static_cast<uintptr_t>(size) &&
      next->first < chunk_end) {
    size += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin()) {
    const auto before = std::prev(next);
    const uintptr_t end = before->first + static_cast<uintptr_t>(before->second);
    OT_CHECK_LE(end, begin) << "freed twice";
    if (end == begin && before->first >= chunk->first) {
      begin = before->first;
      size += before->second;
      holes_.erase(before);
    }
  }
  if (size == chunk->second) {
    give_(Pointer(chunk->first));
    chunk_bytes_ -= size;
    free_bytes_ -= size;
    chunks_.erase(chunk);
    return;
  }
  holes_[begin] = size;
}

bool Arena::Owns(const void* address) const {
  return ChunkOf(reinterpret_cast<uintptr_t>(address)) != chunks_.end();
}

Arena::Spans::const_iterator Arena::ChunkOf(uintptr_t address) const {
  auto after = chunks_.upper_bound(address);
  if (after == chunks_.begin()) return chunks_.end();
  const auto chunk = std::prev(after);
  return address < chunk->first + static_cast<uintptr_t>(chunk->second) ? chunk : chunks_.end();
}

}  // namespace overtok::cuda

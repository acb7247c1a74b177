// Arena: memory of a device in large chunks, cut into pieces of 256 bytes and multiples. A run
// takes a few thousand tensors before step 0; one call to the driver for each would cost seconds
// and round every one of them up to the driver's pages. Knows addresses alone: it never touches
// what lies there, and needs no CUDA to build.
#pragma once

#include <cstdint>
#include <functional>
#include <map>

namespace overtok::cuda {

class Arena {
 public:
  static constexpr int64_t kAlignment = 256;
  // Large enough that small tensors share chunks; what is left of the last chunk is all that is
  // ever lost (0.2 % of an H200).
  static constexpr int64_t kChunk = int64_t{256} << 20;

  // `take`: memory of so many bytes, aligned to kAlignment, or null. `give`: back again.
  using TakeChunk = std::function<void*(int64_t bytes)>;
  using GiveChunk = std::function<void(void* data)>;
  Arena(TakeChunk take, GiveChunk give) : take_(std::move(take)), give_(std::move(give)) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The first hole that is large enough, or a new chunk; null when there is no memory for one.
  void* Allocate(int64_t bytes);
  // A piece of Allocate; a chunk without pieces is given back.
  void Free(void* data, int64_t bytes);
  // Whether an address lies in a chunk.
  bool Owns(const void* address) const;
  // In chunks, in no piece.
  int64_t free_bytes() const { return free_bytes_; }
  int64_t chunk_bytes() const { return chunk_bytes_; }

 private:
  using Spans = std::map<uintptr_t, int64_t>;  // bytes by begin
  Spans::const_iterator ChunkOf(uintptr_t address) const;

  TakeChunk take_;
  GiveChunk give_;
  Spans chunks_;
  Spans holes_;  // no two of one chunk touch
  int64_t free_bytes_ = 0, chunk_bytes_ = 0;
};

}  // namespace overtok::cuda

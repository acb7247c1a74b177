// The arena against a list of what is taken: pieces are apart, aligned and inside chunks, holes are
// used again and grow together, chunks go back.
#include "core/cuda/arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <vector>

namespace overtok {
namespace {

using cuda::Arena;

// Memory that is nothing but addresses, so many bytes of it.
class Space {
 public:
  explicit Space(int64_t limit) : limit_(limit) {}
  Arena Make() {
    return Arena([this](int64_t bytes) { return Take(bytes); }, [this](void* data) { Give(data); });
  }
  int64_t taken() const { return taken_; }
  size_t chunks() const { return chunks_.size(); }

 private:
  void* Take(int64_t bytes) {
    if (taken_ + bytes > limit_) return nullptr;
    const uintptr_t begin = next_;
    next_ += static_cast<uintptr_t>(bytes);  // chunks touch: pieces must not join across them
    taken_ += bytes;
    chunks_[begin] = bytes;
    return reinterpret_cast<void*>(begin);
  }
  void Give(void* data) {
    const auto chunk = chunks_.find(reinterpret_cast<uintptr_t>(data));
    ASSERT_TRUE(chunk != chunks_.end());
    taken_ -= chunk->second;
    chunks_.erase(chunk);
  }
  int64_t limit_, taken_ = 0;
  uintptr_t next_ = 1 << 20;
  std::map<uintptr_t, int64_t> chunks_;
};

TEST(Arena, PiecesShareAChunkAndAreAlignedAndApart) {
  Space space(Arena::kChunk * 4);
  Arena arena = space.Make();
  auto* a = static_cast<char*>(arena.Allocate(1));
  auto* b = static_cast<char*>(arena.Allocate(257));
  auto* c = static_cast<char*>(arena.Allocate(256));
  EXPECT_EQ(b - a, 256);
  EXPECT_EQ(c - b, 512);
  EXPECT_EQ(space.chunks(), 1U);
  EXPECT_EQ(arena.free_bytes(), Arena::kChunk - 1024);
  EXPECT_TRUE(arena.Owns(a) && arena.Owns(c + 255));
  EXPECT_FALSE(arena.Owns(a - 1));
  EXPECT_FALSE(arena.Owns(a + Arena::kChunk));
  EXPECT_FALSE(arena.Owns(nullptr));
}

TEST(Arena, AHoleIsUsedAgainAndAnEmptyChunkGoesBack) {
  Space space(Arena::kChunk * 4);
  Arena arena = space.Make();
  void* a = arena.Allocate(1000);
  void* b = arena.Allocate(1000);
  void* c = arena.Allocate(1000);
  arena.Free(b, 1000);
  EXPECT_EQ(arena.Allocate(1024), b);
  arena.Free(b, 1024);
  arena.Free(a, 1000);
  EXPECT_EQ(arena.Allocate(2048), a);  // both holes as one
  arena.Free(a, 2048);
  arena.Free(c, 1000);
  EXPECT_EQ(space.chunks(), 0U);
  EXPECT_EQ(arena.free_bytes(), 0);
  EXPECT_EQ(arena.chunk_bytes(), 0);
}

TEST(Arena, WhatIsLeftOfTheDeviceIsTakenExactly) {
  Space space(Arena::kChunk + 4096);
  Arena arena = space.Make();
  EXPECT_NE(arena.Allocate(Arena::kChunk), nullptr);
  EXPECT_NE(arena.Allocate(4000), nullptr);  // no whole chunk is left
  EXPECT_EQ(space.taken(), Arena::kChunk + 4096);
  EXPECT_EQ(arena.Allocate(256), nullptr);
}

TEST(Arena, FreeingTwiceStops) {
  Space space(Arena::kChunk);
  Arena arena = space.Make();
  void* a = arena.Allocate(512);
  void* b = arena.Allocate(512);
  arena.Free(a, 512);
  EXPECT_DEATH(arena.Free(a, 512), "freed twice");
  arena.Free(b, 512);
  EXPECT_DEATH(arena.Free(b, 512), "no piece");
}

TEST(Arena, RandomOrdersOfTakingAndFreeing) {
  std::mt19937_64 random(5);
  Space space(Arena::kChunk * 6);
  Arena arena = space.Make();
  std::map<uintptr_t, int64_t> taken;
  int64_t in_use = 0;
  for (int i = 0; i < 4000; ++i) {
    if (taken.empty() || random() % 5 < 3) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (Arena::kChunk / 8));
      void* data = arena.Allocate(bytes);
      if (data == nullptr) continue;
      const auto begin = reinterpret_cast<uintptr_t>(data);
      EXPECT_EQ(begin % Arena::kAlignment, 0U);
      const auto after = taken.lower_bound(begin);
      if (after != taken.end()) {
        ASSERT_LE(begin + static_cast<uintptr_t>(bytes), after->first);
      }
      if (after != taken.begin()) {
        const auto before = std::prev(after);
        ASSERT_LE(before->first + static_cast<uintptr_t>(before->second), begin);
      }
      ASSERT_TRUE(arena.Owns(data) && arena.Owns(static_cast<char*>(data) + bytes - 1));
      taken[begin] = bytes;
      in_use += (bytes + 255) / 256 * 256;
    } else {
      auto piece = taken.begin();
      std::advance(piece, static_cast<int64_t>(random() % taken.size()));
      arena.Free(reinterpret_cast<void*>(piece->first), piece->second);
      in_use -= (piece->second + 255) / 256 * 256;
      taken.erase(piece);
    }
    ASSERT_EQ(arena.chunk_bytes() - arena.free_bytes(), in_use);
    ASSERT_EQ(arena.chunk_bytes(), space.taken());
  }
  for (const auto& [begin, bytes] : taken) arena.Free(reinterpret_cast<void*>(begin), bytes);
  EXPECT_EQ(space.chunks(), 0U);
}

}  // namespace
}  // namespace overtok

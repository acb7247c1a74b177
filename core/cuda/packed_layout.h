// Sizes of attention over packed documents (core/cuda/packed_attention.h): how many documents a
// call takes, and where what it needs beyond its operands lies in scratch. Needs no CUDA, so that
// memory is planned alike with and without a GPU.
#pragma once

#include <algorithm>
#include <cstdint>

namespace overtok {

struct PackedSizes {
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, width = 0;

  int64_t tokens() const { return batch * length; }
  auto operator<=>(const PackedSizes&) const = default;
};

// Bytes from the start of scratch. Every piece is 256-byte aligned.
struct PackedLayout {
  int64_t documents = 0;  // N, room in the lists
  // [B, S, H] f32, positions first; afterwards, at the same place, what the kernels of the
  // remaining windows take ([B, H, S] f32).
  int64_t statistics = 0;
  int64_t lengths = 0;  // [N] i32
  // [N + 1] i64 each: where a document's rows begin in q, in k, and in the statistics; elements.
  int64_t query_places = 0, key_places = 0, statistic_places = 0;
  int64_t counts = 0, taken = 0;  // [B] i32 each
  int64_t workspace = 0, workspace_bytes = 0;
  int64_t bytes = 0;
};

// Room for documents of 512 positions on average, and a border more in each window: every sequence
// of the packed batch costs as many blocks as the longest one could fill, nearly all of which end
// at once. Windows that find no room are the kernels'.
inline int64_t PackedDocuments(int64_t batch, int64_t length) {
  constexpr int64_t kPositions = 512, kLeast = 8;
  return std::max(kLeast, batch * (1 + (length + kPositions - 1) / kPositions));
}

// What cuDNN's plans ask for, as the graphs of core/cuda/cudnn_graph.cc lead to. Backward:
// gradients of queries in f32 and, where heads share keys, those of keys and values for every query
// head before they are added up, 4 T H D bytes each; o . dout of every query; and cuDNN's own: two
// counters of 4 bytes for each 64 queries of a head of a document, and about 460 bytes a document
// for its descriptors (plans of cuDNN 9.28 for sm_90), here with twice the counters and room for
// 1 KB a document. A plan that asks for more is an error when it is made.
inline int64_t PackedWorkspaceBytes(const PackedSizes& s, int64_t documents) {
  const int64_t f32 = 4, wide = s.tokens() * s.heads * s.width * f32;
  const int64_t counters = documents * s.heads * ((s.length + 63) / 64) * 16;
  return (s.heads == s.kv_heads ? 1 : 3) * wide + s.tokens() * s.heads * f32 + counters +
         documents * 1024 + (int64_t{1} << 20);
}

inline PackedLayout LayoutOf(const PackedSizes& s) {
  PackedLayout layout;
  int64_t at = 0;
  const auto take = [&at](int64_t bytes) {
    const int64_t begin = at;
    at += (bytes + 255) / 256 * 256;
    return begin;
  };
  const int64_t n = layout.documents = PackedDocuments(s.batch, s.length);
  layout.statistics = take(s.tokens() * s.heads * 4);
  layout.lengths = take(n * 4);
  layout.query_places = take((n + 1) * 8);
  layout.key_places = take((n + 1) * 8);
  layout.statistic_places = take((n + 1) * 8);
  layout.counts = take(s.batch * 4);
  layout.taken = take(s.batch * 4);
  layout.workspace_bytes = PackedWorkspaceBytes(s, n);
  layout.workspace = take(layout.workspace_bytes);
  layout.bytes = at;
  return layout;
}

}  // namespace overtok

// Attention by an implementation that knows neither windows nor segments, only a packed batch of
// sequences: every document of a micro-batch becomes one of them. The documents of a window are
// found on the device, by kernels, so that the host waits for nothing; a window whose documents
// find no room in the lists (core/cuda/packed_layout.h) is left to the backend's own kernels. Which
// windows those are follows from the segments alone: in order, each window that still fits.
//
// The saved log-sum-exp stays [B, H, S] (core/ops/attention.h); packed implementations keep it with
// positions first, between which and ours it is copied.
#pragma once

#include <cstdint>

#include "core/context.h"
#include "core/cuda/packed_layout.h"
#include "core/ops/attention.h"

namespace overtok {

// The documents of a micro-batch, in order: on the device, in scratch.
struct DocumentLists {
  int64_t documents = 0;       // N
  int32_t* lengths = nullptr;  // [N]; 0 behind the last document
  // [N + 1]: elements from the start of q, k and the statistics; behind the last document the end
  // of the tensor.
  int64_t *query_places = nullptr, *key_places = nullptr, *statistic_places = nullptr;
  int32_t* counts = nullptr;  // [B]: documents of each window
  int32_t* taken = nullptr;   // [B]: 1 where they are in the lists
};

// What a backend brings along, on the context's stream (core/cuda/documents.cu and the kernels of
// attention).
struct PackedKernels {
  void (*list)(const Context& context, const Tensor& segments, const PackedSizes& sizes,
               const DocumentLists& lists);
  // Of taken windows: [B, S, H] to [B, H, S], and back.
  void (*statistics_to_lse)(const Context& context, const float* statistics, const int32_t* taken,
                            const Tensor& lse);
  void (*lse_to_statistics)(const Context& context, const Tensor& lse, const int32_t* taken,
                            float* statistics);
  // The kernels of attention for all windows but those taken; with null for all. Backward needs
  // [B, H, S] f32 at the start of scratch.
  void (*forward)(const Context& context, const AttentionForwardArgs& args, const int32_t* taken);
  void (*backward)(const Context& context, const AttentionBackwardArgs& args, const int32_t* taken);
};
namespace cuda {
const PackedKernels& KernelsOfPacked();
}
namespace emulated {
const PackedKernels& KernelsOfPacked();
}
namespace checked {
const PackedKernels& KernelsOfPacked();
}

// A call as the packed implementation sees it. It writes rows of listed documents and nothing else
// of its results; `statistics` are natural logs of the sums of exponentials of scaled scores.
struct PackedForward {
  PackedSizes sizes;
  DocumentLists lists;
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* o = nullptr;
  float* statistics = nullptr;
  double scale = 0;
  void* workspace = nullptr;  // PackedLayout::workspace_bytes
};
struct PackedBackward {
  PackedSizes sizes;
  DocumentLists lists;
  const void *dout = nullptr, *q = nullptr, *k = nullptr, *v = nullptr, *o = nullptr;
  const float* statistics = nullptr;
  void *dq = nullptr, *dk = nullptr, *dv = nullptr;
  double scale = 0;
  void* workspace = nullptr;
};
using PackedForwardFunction = void (*)(const Context&, const PackedForward&);
using PackedBackwardFunction = void (*)(const Context&, const PackedBackward&);

// Whether packed implementations take a call; others are the kernels', whole: bf16, heads of a
// multiple of 16 values up to 128, windows of more than one position, every tensor 16-byte aligned.
bool TakesPacked(const AttentionForwardArgs& args);
bool TakesPacked(const AttentionBackwardArgs& args);

// core/ops/attention.h by `packed` and, for the windows that it does not take, by the kernels.
void AttendPacked(const Context& context, const AttentionForwardArgs& args,
                  const PackedKernels& kernels, PackedForwardFunction packed);
void AttendPacked(const Context& context, const AttentionBackwardArgs& args,
                  const PackedKernels& kernels, PackedBackwardFunction packed);

}  // namespace overtok

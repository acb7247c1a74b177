#include "core/cuda/packed_attention.h"

namespace overtok {
namespace {

template <class... Tensors>
bool Aligned(const Tensors&... tensors) {
  return ((reinterpret_cast<uintptr_t>(tensors.raw()) % 16 == 0) && ...);
}

bool TakesShapes(const Tensor& q, const Tensor& segments) {
  return q.dtype() == DType::kBF16 && q.dim(2) % 16 == 0 && q.dim(2) <= 128 && segments.dim(1) > 1;
}

PackedSizes SizesOf(const Tensor& q, const Tensor& k, const Tensor& segments) {
  return {.batch = segments.dim(0),
          .length = segments.dim(1),
          .heads = q.dim(1),
          .kv_heads = k.dim(1),
          .width = q.dim(2)};
}

// The pieces of a call's scratch.
struct Pieces {
  Pieces(const Context& context, const PackedSizes& sizes) {
    const PackedLayout layout = LayoutOf(sizes);
    auto* const base = static_cast<char*>(context.Scratch(layout.bytes));
    const auto i32 = [base](int64_t at) { return reinterpret_cast<int32_t*>(base + at); };
    const auto i64 = [base](int64_t at) { return reinterpret_cast<int64_t*>(base + at); };
    lists = {.documents = layout.documents,
             .lengths = i32(layout.lengths),
             .query_places = i64(layout.query_places),
             .key_places = i64(layout.key_places),
             .statistic_places = i64(layout.statistic_places),
             .counts = i32(layout.counts),
             .taken = i32(layout.taken)};
    statistics = reinterpret_cast<float*>(base + layout.statistics);
    workspace = base + layout.workspace;
  }
  DocumentLists lists;
  float* statistics;
  void* workspace;
};

}  // namespace

bool TakesPacked(const AttentionForwardArgs& args) {
  return TakesShapes(args.q, args.segments) && Aligned(args.q, args.k, args.v, args.o);
}
bool TakesPacked(const AttentionBackwardArgs& args) {
  return TakesShapes(args.q, args.segments) &&
         Aligned(args.dout, args.q, args.k, args.v, args.o, args.dq, args.dk, args.dv);
}

void AttendPacked(const Context& context, const AttentionForwardArgs& args,
                  const PackedKernels& kernels, PackedForwardFunction packed) {
  if (!TakesPacked(args)) return kernels.forward(context, args, nullptr);
  const PackedSizes sizes = SizesOf(args.q, args.k, args.segments);
  const Pieces pieces(context, sizes);
  kernels.list(context, args.segments, sizes, pieces.lists);
  packed(context, {.sizes = sizes,
                   .lists = pieces.lists,
                   .q = args.q.raw(),
                   .k = args.k.raw(),
                   .v = args.v.raw(),
                   .o = args.o.raw(),
                   .statistics = pieces.statistics,
                   .scale = args.scale,
                   .workspace = pieces.workspace});
  kernels.statistics_to_lse(context, pieces.statistics, pieces.lists.taken, args.lse);
  kernels.forward(context, args, pieces.lists.taken);
}

void AttendPacked(const Context& context, const AttentionBackwardArgs& args,
                  const PackedKernels& kernels, PackedBackwardFunction packed) {
  if (!TakesPacked(args)) return kernels.backward(context, args, nullptr);
  const PackedSizes sizes = SizesOf(args.q, args.k, args.segments);
  const Pieces pieces(context, sizes);
  kernels.list(context, args.segments, sizes, pieces.lists);
  kernels.lse_to_statistics(context, args.lse, pieces.lists.taken, pieces.statistics);
  packed(context, {.sizes = sizes,
                   .lists = pieces.lists,
                   .dout = args.dout.raw(),
                   .q = args.q.raw(),
                   .k = args.k.raw(),
                   .v = args.v.raw(),
                   .o = args.o.raw(),
                   .statistics = pieces.statistics,
                   .dq = args.dq.raw(),
                   .dk = args.dk.raw(),
                   .dv = args.dv.raw(),
                   .scale = args.scale,
                   .workspace = pieces.workspace});
  // From here on the statistics' place is the kernels'.
  kernels.backward(context, args, pieces.lists.taken);
}

}  // namespace overtok

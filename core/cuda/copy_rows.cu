// Copies of rows. Both sides may lie in the host's memory, which answers after microseconds: a row
// is read by neighbouring lanes, up to 32 of them, 16 bytes each where rows are so aligned, and a
// lane asks for four pieces before it writes the first. Rows of a number or two take a lane each.
// Bytes: each row once read and once written, 4 or 8 a row for lists. No operation counts.
#include "core/cuda/kernels.h"
#include "core/ops/copy_rows.h"

namespace overtok::OT_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kEach = 4;  // units of a lane at a time

struct alignas(16) Unit16 {
  uint32_t words[4];
};

struct RowLists {
  const uint32_t *from, *to;     // null: row i is row i
  int64_t from_limit, to_limit;  // rows that there are
};

__device__ __forceinline__ int64_t RowAt(const uint32_t* rows, int64_t i, int64_t limit) {
  const int64_t row = rows != nullptr ? rows[i] : i;
  if (row >= limit) Trap("a row to copy lies beyond its tensor");
  return row;
}

// Rows of `units` units in `pieces` pieces of lanes * kEach; a group of `lanes` threads a piece.
template <class Unit>
__global__ void __launch_bounds__(kThreads)
    CopyRowsKernel(const Unit* from, Unit* to, RowLists lists, int64_t count, int64_t units,
                   int64_t pieces, int lanes) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t piece = thread / lanes;
  const int64_t i = pieces == 1 ? piece : piece / pieces;
  if (i >= count) return;
  const int64_t first = (piece - i * pieces) * lanes * kEach + thread % lanes;
  const Unit* source = from + RowAt(lists.from, i, lists.from_limit) * units;
  Unit* target = to + RowAt(lists.to, i, lists.to_limit) * units;
  CheckAligned(source, sizeof(Unit));
  CheckAligned(target, sizeof(Unit));
  Unit held[kEach];
  OT_UNROLL
  for (int k = 0; k < kEach; ++k) {
    if (first + k * lanes < units) held[k] = source[first + k * lanes];
  }
  OT_UNROLL
  for (int k = 0; k < kEach; ++k) {
    if (first + k * lanes < units) target[first + k * lanes] = held[k];
  }
}

// `rows` rows of `bytes`, in units.
template <class Unit>
void CopyAs(const Context& context, const CopyRowsArgs& args, const RowLists& lists, int64_t rows,
            int64_t bytes) {
  const int64_t units = bytes / static_cast<int64_t>(sizeof(Unit));
  int lanes = 1;
  while (lanes < kWarp && lanes < units) lanes *= 2;
  const int64_t pieces = CeilDiv(units, int64_t{lanes} * kEach);
  Launch("CopyRows", context,
         {.blocks = CeilDiv(rows * pieces * lanes, kThreads), .threads = kThreads},
         CopyRowsKernel<Unit>, static_cast<const Unit*>(args.from.raw()),
         static_cast<Unit*>(args.to.raw()), lists, rows, units, pieces, lanes);
}

}  // namespace

void CopyRows(const Context& context, const CopyRowsArgs& args) {
  int64_t rows = RowsOf(args), bytes = RowBytesOf(args);
  RowLists lists = {args.from_rows.defined() ? args.from_rows.data<uint32_t>() : nullptr,
                    args.to_rows.defined() ? args.to_rows.data<uint32_t>() : nullptr,
                    args.from.dim(0), args.to.dim(0)};
  // Without lists, one long row.
  if (lists.from == nullptr && lists.to == nullptr) {
    bytes *= rows;
    rows = 1;
  }
  const auto fits = [&](int64_t unit) {
    return bytes % unit == 0 && reinterpret_cast<uintptr_t>(args.from.raw()) % unit == 0 &&
           reinterpret_cast<uintptr_t>(args.to.raw()) % unit == 0;
  };
  if (fits(16)) return CopyAs<Unit16>(context, args, lists, rows, bytes);
  if (fits(8)) return CopyAs<uint64_t>(context, args, lists, rows, bytes);
  if (fits(4)) return CopyAs<uint32_t>(context, args, lists, rows, bytes);
  if (fits(2)) return CopyAs<uint16_t>(context, args, lists, rows, bytes);
  CopyAs<uint8_t>(context, args, lists, rows, bytes);
}

}  // namespace overtok::OT_BACKEND

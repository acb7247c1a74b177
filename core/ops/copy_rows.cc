#include "core/ops/copy_rows.h"

#include "core/ops/check_args.h"

namespace overtok {
namespace {

// Elements of a row, of tensors without rows too.
int64_t RowElements(const Tensor& tensor) {
  int64_t elements = 1;
  for (int i = 1; i < tensor.rank(); ++i) elements *= tensor.dim(i);
  return elements;
}

// A list has U rows; without one they are the first U of the tensor.
void CheckRows(const Tensor& tensor, const Tensor& rows, const Tensor& to, int64_t count) {
  if (!rows.defined()) {
    OT_CHECK_LE(count, tensor.dim(0))
        << "the first " << count << " rows of " << tensor.shape().ToString();
    return;
  }
  OT_CHECK_DTYPE(rows, DType::kU32);
  OT_CHECK_SHAPE(rows, {count});
  OT_CHECK_APART(to, rows);
}

}  // namespace

int64_t RowsOf(const CopyRowsArgs& args) {
  if (args.from_rows.defined()) return args.from_rows.elements();
  return args.to_rows.defined() ? args.to_rows.elements() : args.count;
}

int64_t RowBytesOf(const CopyRowsArgs& args) {
  return RowElements(args.from) * SizeOf(args.from.dtype());
}

void CopyRows(const Context& context, const CopyRowsArgs& args) {
  OT_CHECK_GE(args.from.rank(), 1);
  OT_CHECK_GE(args.to.rank(), 1);
  OT_CHECK_DTYPE(args.to, args.from.dtype());
  OT_CHECK_EQ(RowElements(args.to), RowElements(args.from));
  OT_CHECK_APART(args.to, args.from);
  const int64_t count = RowsOf(args);
  OT_CHECK_GE(count, 0);
  CheckRows(args.from, args.from_rows, args.to, count);
  CheckRows(args.to, args.to_rows, args.to, count);
  if (count == 0 || RowBytesOf(args) == 0) return;
  internal::Call(context.kernels().copy_rows, "copy of rows", context, args);
}

}  // namespace overtok

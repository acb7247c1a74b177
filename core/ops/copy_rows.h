// Rows from one tensor to rows of another: how rows of a table in host memory come to the device
// and go back.
#pragma once

#include "core/context.h"
#include "core/tensor.h"

namespace overtok {

// to[to_rows[i]] = from[from_rows[i]] for all i of U; no bit changes.
struct CopyRowsArgs {
  Tensor from, to;  // [R, ...] and [R', ...] of one dtype and equal rows, of any length
  // [U] u32, below R and R'; undefined: row i. Rows of `to` are distinct.
  Tensor from_rows = {}, to_rows = {};
  int64_t count = 0;  // U; of use where neither is given
};
void CopyRows(const Context& context, const CopyRowsArgs& args);

// What the checks and kernels read from the arguments: U, and the bytes of a row.
int64_t RowsOf(const CopyRowsArgs& args);
int64_t RowBytesOf(const CopyRowsArgs& args);

}  // namespace overtok

// Entry point of the matrix product: checks shapes, dtypes and aliasing, settles empty products.
#include "core/ops/matmul.h"

#include "core/ops/check_args.h"

namespace overtok {
namespace {

bool Supported(DType a, DType b, DType c) {
  if (a != b) return false;
  if (a == DType::kBF16) return c == DType::kBF16 || c == DType::kF32;
  return (a == DType::kF32 || a == DType::kF64) && c == a;
}

}  // namespace

void Matmul(const Context& context, const MatmulArgs& args) {
  const Tensor &a = args.a, &b = args.b, &c = args.c;
  OT_CHECK(a.rank() == b.rank() && a.rank() == c.rank() && (c.rank() == 2 || c.rank() == 3))
      << "matmul of " << a.shape().ToString() << " and " << b.shape().ToString() << " into "
      << c.shape().ToString();
  const int first = c.rank() - 2;  // the row dimension
  const int64_t m = c.dim(first), n = c.dim(first + 1);
  const int64_t k = a.dim(args.trans_a ? first : first + 1);
  OT_CHECK(a.dim(args.trans_a ? first + 1 : first) == m &&
           b.dim(args.trans_b ? first : first + 1) == n &&
           b.dim(args.trans_b ? first + 1 : first) == k)
      << "matmul of " << a.shape().ToString() << (args.trans_a ? "^T" : "") << " and "
      << b.shape().ToString() << (args.trans_b ? "^T" : "") << " into " << c.shape().ToString();
  if (first == 1) {
    OT_CHECK(a.dim(0) == c.dim(0) && b.dim(0) == c.dim(0))
        << "batches of matmul: " << a.dim(0) << ", " << b.dim(0) << ", " << c.dim(0);
  }
  OT_CHECK(Supported(a.dtype(), b.dtype(), c.dtype()))
      << "matmul of " << NameOf(a.dtype()) << " and " << NameOf(b.dtype()) << " into "
      << NameOf(c.dtype());
  if (c.elements() == 0) return;
  if (k == 0) {  // an empty sum
    if (!args.accumulate) Fill(context, {.x = c, .value = 0});
    return;
  }
  OT_CHECK_APART(c, a);
  OT_CHECK_APART(c, b);
  internal::Call(context.kernels().matmul, "matmul", context, args);
}

}  // namespace overtok

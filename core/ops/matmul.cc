// Entry point of the matrix product: checks shapes, dtypes and aliasing, settles empty products,
// has operands rounded to TF32 where asked.
#include "core/ops/matmul.h"

#include "core/ops/check_args.h"

namespace overtok {
namespace {

bool Supported(DType a, DType b, DType c) {
  if (a != b) return false;
  if (a == DType::kBF16) return c == DType::kBF16 || c == DType::kF32;
  return (a == DType::kF32 || a == DType::kF64) && c == a;
}

// Rounded operands start at multiples of this, the most that a library of products looks at.
constexpr int64_t kAlignment = 256;
int64_t CopyBytes(int64_t elements) {
  return (elements * SizeOf(DType::kF32) + kAlignment - 1) / kAlignment * kAlignment;
}

Tensor Rounded(const Context& context, const Tensor& x, void* to) {
  const Tensor y(to, DType::kF32, x.shape());
  RoundToTF32(context, {x, y});
  return y;
}

// The operands in their place, rounded; b once where it is a.
void RoundOperands(const Context& context, MatmulArgs* args) {
  const bool same = internal::Same(args->a, args->b);
  const int64_t a_bytes = CopyBytes(args->a.elements());
  auto* const scratch = static_cast<char*>(
      context.Scratch(MatmulScratch(args->a.elements(), same ? 0 : args->b.elements())));
  const Tensor a = Rounded(context, args->a, scratch);
  args->b = same ? a.Reshape(args->b.shape()) : Rounded(context, args->b, scratch + a_bytes);
  args->a = a;
}

}  // namespace

int64_t MatmulScratch(int64_t a_elements, int64_t b_elements) {
  return CopyBytes(a_elements) + CopyBytes(b_elements);
}

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
  MatmulArgs call = args;
  call.tf32 = args.tf32 && a.dtype() == DType::kF32;
  if (call.tf32) RoundOperands(context, &call);
  internal::Call(context.kernels().matmul, "matmul", context, call);
}

void RoundToTF32(const Context& context, const RoundToTF32Args& args) {
  OT_CHECK_DTYPE(args.x, DType::kF32);
  OT_CHECK_DTYPE(args.y, DType::kF32);
  OT_CHECK_EQ(args.x.elements(), args.y.elements());
  OT_CHECK_SAME_OR_APART(args.x, args.y);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().round_to_tf32, "rounding to TF32", context, args);
}

}  // namespace overtok

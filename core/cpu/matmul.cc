// The matrix product of the CPU backend: divides what oneDNN handles badly as one piece, by rules
// that depend on sizes alone.
#include "core/cpu/matmul.h"

#include <algorithm>

#include "core/cpu/kernels.h"

namespace overtok::cpu {
namespace {

// oneDNN 2.6 multiplies operands with gaps between rows by another way than whole ones, and that
// way is the faster one for a vocabulary head's gradients. (GFLOP/s on two Zen 5 cores, V =
// 32,000.)
//
// Rows of op(a) at once where a is transposed (the head's weight, [V, 256]): with 1,024 terms 410
// -> 430 in f32, 732 -> 808 in bf16; with 256 terms 360 -> 390, 564 -> 744.
constexpr int64_t kRowsAtOnce = 4096;
// Terms summed at once (the head's input, V terms): 360 -> 470 in f32. The later pieces are added
// to the result, so it must not be bf16. bf16 operands gain from 512 rows (775 -> 840) and lose
// below (840 -> 730 at 256).
constexpr int64_t kTermsAtOnce = 8192;
constexpr int64_t kRowsToDivideBF16 = 512;

char* At(const void* base, int64_t elements, DType dtype) {
  return static_cast<char*>(const_cast<void*>(base)) + elements * SizeOf(dtype);
}

void Whole(const Product& p) {
  if (!OneDnnProduct(p)) TiledProduct(p);
}

void BySums(const Product& p) {
  const bool divide =
      p.operand == DType::kBF16 ? p.result == DType::kF32 && p.m >= kRowsToDivideBF16 : true;
  const int64_t pieces = (p.k + kTermsAtOnce - 1) / kTermsAtOnce;
  if (pieces == 1 || !divide) return Whole(p);
  const int64_t terms = (p.k + pieces - 1) / pieces;
  for (int64_t k = 0; k < p.k; k += terms) {
    Product piece = p;
    piece.k = std::min(terms, p.k - k);
    piece.a = At(p.a, k * p.a_column, p.operand);
    piece.b = At(p.b, k * p.b_row, p.operand);
    piece.accumulate = p.accumulate || k > 0;
    Whole(piece);
  }
}

void ByRows(const Product& p) {
  const int64_t pieces = (p.m + kRowsAtOnce - 1) / kRowsAtOnce;
  if (pieces == 1 || p.batch > 1 || p.a_row != 1) return BySums(p);
  const int64_t rows = (p.m + pieces - 1) / pieces;
  for (int64_t i = 0; i < p.m; i += rows) {
    Product piece = p;
    piece.m = std::min(rows, p.m - i);
    piece.a = At(p.a, i * p.a_row, p.operand);
    piece.c = At(p.c, i * p.c_row, p.result);
    BySums(piece);
  }
}

}  // namespace

void Matmul(const Context& /*context*/, const MatmulArgs& args) {
  const int first = args.c.rank() - 2;
  Product p;
  p.batch = first == 1 ? args.c.dim(0) : 1;
  p.m = args.c.dim(first);
  p.n = args.c.dim(first + 1);
  p.k = args.a.dim(args.trans_a ? first : first + 1);
  p.a = args.a.raw();
  p.b = args.b.raw();
  p.c = args.c.raw();
  p.operand = args.a.dtype();
  p.result = args.c.dtype();
  p.a_batch = p.m * p.k;
  p.b_batch = p.k * p.n;
  p.c_batch = p.m * p.n;
  p.a_row = args.trans_a ? 1 : p.k;
  p.a_column = args.trans_a ? p.m : 1;
  p.b_row = args.trans_b ? 1 : p.n;
  p.b_column = args.trans_b ? p.k : 1;
  p.c_row = p.n;
  p.accumulate = args.accumulate;
  p.alpha = args.alpha;
  ByRows(p);
}

}  // namespace overtok::cpu

#include "core/ops/rope.h"

#include <cmath>

#include "core/ops/blocks.h"
#include "core/ops/check_args.h"

namespace overtok {
namespace {

void CheckTables(const RopeTables& tables, int64_t rows, int64_t width, DType statistic) {
  OT_CHECK(width % 2 == 0) << "head width " << width << " is odd";
  OT_CHECK_DTYPE(tables.cos, statistic);
  OT_CHECK_DTYPE(tables.sin, statistic);
  OT_CHECK_EQ(tables.cos.rank(), 2);
  OT_CHECK_SHAPE(tables.cos, {tables.cos.dim(0), width / 2});
  OT_CHECK_SHAPE(tables.sin, {tables.cos.dim(0), width / 2});
  OT_CHECK(rows == 0 || (tables.cos.dim(0) > 0 && rows % tables.cos.dim(0) == 0))
      << rows << " rows are no whole windows of " << tables.cos.dim(0);
}

}  // namespace

void FillRopeTables(double theta, bool round_to_bf16, const RopeTables& tables) {
  OT_CHECK(theta > 0);
  OT_CHECK_EQ(tables.cos.rank(), 2);
  OT_CHECK(tables.cos.shape() == tables.sin.shape() && tables.cos.dtype() == tables.sin.dtype());
  OT_CHECK(tables.cos.dtype() == DType::kF32 || tables.cos.dtype() == DType::kF64);
  const int64_t length = tables.cos.dim(0), half = tables.cos.dim(1);
  const auto store = [&](const Tensor& table, int64_t at, double value) {
    if (round_to_bf16) value = static_cast<float>(bf16(static_cast<float>(value)));
    if (table.dtype() == DType::kF64) {
      table.data<double>()[at] = value;
    } else {
      table.data<float>()[at] = static_cast<float>(value);
    }
  };
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = std::pow(theta, -static_cast<double>(i) / static_cast<double>(half));
    for (int64_t p = 0; p < length; ++p) {
      const double angle = static_cast<double>(p) * frequency;
      store(tables.cos, p * half + i, std::cos(angle));
      store(tables.sin, p * half + i, std::sin(angle));
    }
  }
}

void QkNormRopeForward(const Context& context, const QkNormRopeForwardArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_EQ(args.x.rank(), 3);
  const DType statistic = internal::StatisticType(args.x.dtype());
  const int64_t rows = args.x.dim(0), heads = args.x.dim(1), width = args.x.dim(2);
  OT_CHECK_DTYPE(args.y, args.x.dtype());
  OT_CHECK_SHAPE(args.y, {rows, heads, width});
  OT_CHECK_DTYPE(args.gain, statistic);
  OT_CHECK_SHAPE(args.gain, {width});
  OT_CHECK_DTYPE(args.rstd, statistic);
  OT_CHECK_SHAPE(args.rstd, {rows, heads});
  OT_CHECK_SAME_OR_APART(args.y, args.x);
  CheckTables(args.tables, rows, width, statistic);
  if (args.x.elements() == 0) return;
  internal::Call(context.kernels().qk_norm_rope_forward, "QK-norm and RoPE forward", context, args);
}

void QkNormRopeBackward(const Context& context, const QkNormRopeBackwardArgs& args) {
  OT_CHECK_ACT(args.x);
  OT_CHECK_EQ(args.x.rank(), 3);
  const DType statistic = internal::StatisticType(args.x.dtype());
  const int64_t rows = args.x.dim(0), heads = args.x.dim(1), width = args.x.dim(2);
  for (const Tensor& tensor : {args.dy, args.dx}) {
    OT_CHECK_DTYPE(tensor, args.x.dtype());
    OT_CHECK_SHAPE(tensor, {rows, heads, width});
  }
  for (const Tensor& tensor : {args.gain, args.dgain}) {
    OT_CHECK_DTYPE(tensor, statistic);
    OT_CHECK_SHAPE(tensor, {width});
  }
  OT_CHECK_DTYPE(args.rstd, statistic);
  OT_CHECK_SHAPE(args.rstd, {rows, heads});
  OT_CHECK_APART(args.dx, args.x);
  OT_CHECK_SAME_OR_APART(args.dx, args.dy);
  OT_CHECK_APART(args.dgain, args.gain);
  CheckTables(args.tables, rows, width, statistic);
  if (args.x.elements() == 0) {
    if (!args.accumulate_dgain && width > 0) Fill(context, {.x = args.dgain, .value = 0});
    return;
  }
  internal::Call(context.kernels().qk_norm_rope_backward, "QK-norm and RoPE backward", context,
                 args);
}

int64_t QkNormRopeBackwardScratch(int64_t rows, int64_t /*heads*/, int64_t width, DType dtype) {
  return RowBlocks(rows) * width * SizeOf(internal::StatisticType(dtype));
}

}  // namespace overtok

#include "tools/op_operands.h"

#include <algorithm>
#include <cstring>

#include "core/ops/elementwise.h"
#include "core/rng.h"

namespace overtok {
namespace {

constexpr int64_t kDrawn = int64_t{1} << 18;

// Host memory to a tensor of any device.
void Put(const Context& context, const void* from, const Tensor& to) {
  if (context.device().own_memory()) {
    context.Write(from, to);
  } else {
    std::memcpy(to.raw(), from, static_cast<size_t>(to.bytes()));
  }
}

}  // namespace

Tensor Operands::Take(DType dtype, Shape shape) {
  return memory_.Take(Purpose::kActivations, "operand", dtype, shape);
}

Tensor Operands::Normal(DType dtype, Shape shape) {
  const Tensor out = Take(dtype, shape);
  ++key_;
  if (!fill_) return out;
  const Context c = context();
  const Tensor flat = out.Reshape({out.elements()});
  const int64_t drawn = std::min(kDrawn, flat.elements());
  std::vector<float> values(static_cast<size_t>(drawn));
  FillTruncatedNormal(key_, 0, 1.0F, Tensor(values.data(), DType::kF32, {drawn}));
  std::vector<bf16> narrow;
  if (dtype == DType::kBF16) {
    for (const float value : values) narrow.emplace_back(value);
    Put(c, narrow.data(), flat.Rows(0, drawn));
  } else {
    Put(c, values.data(), flat.Rows(0, drawn));
  }
  for (int64_t done = drawn; done < flat.elements();) {
    const int64_t more = std::min(done, flat.elements() - done);
    Cast(c, {flat.Rows(0, more), flat.Rows(done, more)});
    done += more;
  }
  return out;
}

Tensor Operands::Constant(DType dtype, Shape shape, double value) {
  const Tensor out = Take(dtype, shape);
  if (fill_) Fill(context(), {.x = out, .value = value});
  return out;
}

Tensor Operands::Ids(int64_t count, int64_t limit) {
  std::vector<uint32_t> ids(static_cast<size_t>(count));
  ++key_;
  for (size_t i = 0; i < ids.size(); ++i)
    ids[i] = Philox(key_, i, 0)[0] % static_cast<uint32_t>(limit);
  return U32(ids);
}

Tensor Operands::U32(const std::vector<uint32_t>& values) {
  const Tensor out = Take(DType::kU32, {static_cast<int64_t>(values.size())});
  if (fill_) Put(context(), values.data(), out);
  return out;
}

RopeTables Operands::Tables(int64_t length, int64_t head_width, bool round_to_bf16) {
  const Shape shape = {length, head_width / 2};
  const RopeTables tables = {Take(DType::kF32, shape), Take(DType::kF32, shape)};
  if (!fill_) return tables;
  const auto size = static_cast<size_t>(shape.elements());
  std::vector<float> cos(size), sin(size);
  FillRopeTables(10000, round_to_bf16,
                 {Tensor(cos.data(), DType::kF32, shape), Tensor(sin.data(), DType::kF32, shape)});
  Put(context(), cos.data(), tables.cos);
  Put(context(), sin.data(), tables.sin);
  return tables;
}

}  // namespace overtok
